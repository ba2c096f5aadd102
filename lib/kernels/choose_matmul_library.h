#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/matmul_library.h"

namespace ftrun {

/// The value of MatmulLibrariesInUse::attention if attention multiplies bf16 on Intel's matrix
/// units (AMX).
inline constexpr std::string_view kOnMatrixUnits = "bf16 on matrix units";

/// MatmulLibrariesInUse names the libraries that multiply matrices in this process, with versions:
/// "openblas 0.3.34"; for bf16 also "widened to fp32".
struct MatmulLibrariesInUse {
  std::string fp32;
  std::string bf16;
  /// The way in which attention multiplies bf16: kOnMatrixUnits, "bf16 by vdpbf16ps" or "bf16
  /// widened to fp32".
  std::string attention;
  /// The library that the rule names for this CPU but that is missing; "" when it is present.
  std::string missing;
};

/// Chooses the library that multiplies matrices from now on in this process: by the rule of
/// kernels/cpu/matmul_libraries.h, or `pinned`. Throws Error(kEnvironment) when a pinned library
/// cannot be called. Without a call the rule applies. `attention_on_matrix_units` says whether
/// attention multiplies bf16 on matrix units, if the CPU has any; absent: if best_isa() has them.
MatmulLibrariesInUse choose_matmul_library(
    std::optional<MatmulLibrary> pinned,
    std::optional<bool> attention_on_matrix_units = std::nullopt);

/// Makes the library that choose_matmul_library(pinned) would choose for fp32 compile its kernels,
/// if it is one that compiles at run time (oneDNN) and executable memory can be mapped. A process
/// calls it before it forks ranks, which then have the kernels. Starts no thread. Throws
/// std::bad_alloc or Error(kEnvironment) if the library cannot multiply, or if a pinned one cannot
/// be called.
void compile_chosen_fp32_kernels(std::optional<MatmulLibrary> pinned);

}  // namespace ftrun
