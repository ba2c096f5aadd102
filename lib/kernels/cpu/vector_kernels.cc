#include "kernels/cpu/vector_kernels.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace ftrun {

namespace {

/// LibTorch's own variable holds its kernels, and so ours, to AVX2 on processors that have more.
Isa wanted_isa() {
  const Isa best = best_isa();
  const char* const held = std::getenv("ATEN_CPU_CAPABILITY");
  return held != nullptr && std::string_view(held) == "avx2" ? Isa::kAvx2 : best;
}

std::atomic<Isa>& chosen_isa() {
  static std::atomic<Isa> isa{wanted_isa()};
  return isa;
}

}  // namespace

Isa best_isa() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return Isa::kAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c"))
    return Isa::kAvx2;
  throw Error(ExitCode::kUnsupported,
              "this processor has no AVX2, FMA and F16C, which ftrun's CPU kernels need",
              "run on a processor of 2015 or later (Intel Haswell, AMD Zen), or on a GPU");
}

void set_isa(Isa isa) {
  chosen_isa() = isa;
}

Isa isa_in_use() {
  return chosen_isa();
}

template <>
const VectorKernels<float>& vector_kernels<float>() {
  return chosen_isa() == Isa::kAvx512 ? avx512::kFloat : avx2::kFloat;
}

template <>
const VectorKernels<double>& vector_kernels<double>() {
  return chosen_isa() == Isa::kAvx512 ? avx512::kDouble : avx2::kDouble;
}

template <>
const VectorKernels<BFloat16>& vector_kernels<BFloat16>() {
  return chosen_isa() == Isa::kAvx512 ? avx512::kBFloat16 : avx2::kBFloat16;
}

template <>
const VectorKernels<Float16>& vector_kernels<Float16>() {
  return chosen_isa() == Isa::kAvx512 ? avx512::kFloat16 : avx2::kFloat16;
}

const FlatKernels& flat_kernels() {
  return chosen_isa() == Isa::kAvx512 ? avx512::kFlat : avx2::kFlat;
}

}  // namespace ftrun
