#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/matmul_library.h"
#include "kernels/cpu/vector_kernels.h"

// From vendor, instruction set and dtype, never from a measurement, a rule chooses the library that
// multiplies matrices, so CPUs of one type always compute the same bits. Every library is called on
// one thread for fixed tiles of a result (matmul.h), so results do not depend on how the library
// distributes work.
namespace ftrun {

/// CpuTraits holds the properties of a CPU on which the rule depends.
struct CpuTraits {
  /// The vendor name that CPUID reports: "GenuineIntel", "AuthenticAMD", "HygonGenuine".
  std::string vendor;
  Isa isa = Isa::kAvx2;
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  bool amx_bf16 = false;
};
CpuTraits detect_cpu_traits();

/// AvailableLibraries says which libraries other than LibTorch's can be called on this machine.
struct AvailableLibraries {
  bool onednn = true;
  bool openblas = true;
};

/// MatmulRule names the libraries that multiply matrices. Matrices of fp64, which only tests have,
/// are multiplied by MKL.
struct MatmulRule {
  MatmulLibrary fp32 = MatmulLibrary::kMkl;
  /// The library that multiplies bf16 without widening; absent: bf16 is widened to fp32.
  std::optional<MatmulLibrary> bf16;
  bool operator==(const MatmulRule&) const = default;
};

/// Chooses the libraries. MKL runs only its AVX2 kernel on CPUs of other makers. If they have
/// AVX-512, whole training runs are faster with oneDNN; if not, MKL is not slower
/// (docs/benchmarks.md). bf16 is multiplied without widening on CPUs with fast instructions for it:
/// by MKL on matrix units, else by oneDNN. `pinned` is the library to use on any CPU.
MatmulRule choose_matmul_rule(const CpuTraits& cpu, const AvailableLibraries& available,
                              std::optional<MatmulLibrary> pinned = std::nullopt);

/// Returns the rule that matrix multiplications follow: this CPU's until set_matmul_rule().
MatmulRule matmul_rule_in_use();
void set_matmul_rule(const MatmulRule& rule);

/// MatmulCall is a row-major c[m,n] = op(a) op(b) + beta c on the calling thread, in BLAS's terms.
template <class S, class R>
struct MatmulCall {
  bool transpose_a = false;
  bool transpose_b = false;
  int m = 0;
  int n = 0;
  int k = 0;
  const S* a = nullptr;
  int lda = 0;
  const S* b = nullptr;
  int ldb = 0;
  R beta = 0;
  R* c = nullptr;
  int ldc = 0;
};
void multiply_with(MatmulLibrary library, const MatmulCall<float, float>& call);
void multiply_with(MatmulLibrary library, const MatmulCall<double, double>& call);
/// Multiplies bf16 without widening, with MKL, or with oneDNN on AVX-512. Subnormal numbers count
/// as 0.
void multiply_with(MatmulLibrary library, const MatmulCall<BFloat16, float>& call);

/// Makes a library that compiles its fp32 kernels at run time (oneDNN) compile all of them. Starts
/// no thread. Throws std::bad_alloc or Error(kEnvironment) if the library cannot multiply.
void compile_fp32_kernels(MatmulLibrary library);

/// Returns whether the library can be called on this machine; MKL always can.
bool has_matmul_library(MatmulLibrary library);
/// Returns whether the library multiplies bf16 without widening on this CPU.
bool has_bf16_matmul(MatmulLibrary library);
/// Returns the library's name with its version: "openblas 0.3.34".
std::string describe_matmul_library(MatmulLibrary library);

}  // namespace ftrun
