#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ftrun {

/// MatmulLibrary is a library that multiplies matrices on a CPU. MKL is inside LibTorch, the
/// others are shared libraries that may be missing.
enum class MatmulLibrary : uint8_t { kMkl, kOneDnn, kOpenBlas };

/// Returns a library's name as the config spells it: "mkl", "onednn", "openblas".
std::string_view matmul_library_name(MatmulLibrary library);

/// OpenedLibrary is a shared library that the loader has opened. If none of its names was found,
/// `handle` is null and `error` says why. The library is never closed.
struct OpenedLibrary {
  void* handle = nullptr;
  std::string error;
};

/// Opens oneDNN or OpenBLAS with symbols that only its caller sees: both define symbols (sgemm_)
/// that other libraries also define. The loader looks next to LibTorch, then in the system's
/// folders. Throws Error(kEnvironment) if this fails only because memory ran out: another library
/// in its place would compute different bits.
OpenedLibrary open_matmul_library(MatmulLibrary library);

/// Makes the error for a library that a config pins and that this machine lacks: the reason `why`,
/// and what to do.
Error matmul_library_error(MatmulLibrary library, const std::string& why);
/// Throws matmul_library_error() if the library cannot be loaded.
void check_matmul_library(MatmulLibrary library);

}  // namespace ftrun
