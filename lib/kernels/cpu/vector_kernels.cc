#include "kernels/cpu/vector_kernels.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kernels/cpu/cpu_vendor.h"

namespace ftrun {

namespace {

/// Returns the best instruction set that the CPU and ATEN_CPU_CAPABILITY allow. (The variable also
/// limits LibTorch's kernels.)
Isa choose_isa() {
  const Isa best = best_isa();
  const char* const variable = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string_view value = variable == nullptr ? "" : variable;
  if (value == "avx2") return Isa::kAvx2;
  return value == "avx512" ? std::min(best, Isa::kAvx512) : best;
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/// Requests permission to use the matrix units from the operating system, once (Linux 5.16,
/// ARCH_REQ_XCOMP_PERM). Linux requires it because the units add 8 KiB to the state of a thread.
bool may_use_matrix_units() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool may = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return may;
}

std::atomic<Isa>& chosen_isa() {
  static std::atomic<Isa> isa{choose_isa()};
  return isa;
}

}  // namespace

bool can_run(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::kAvx512:
      return has_avx512();
    case Isa::kAvx512Bf16:
      return has_avx512() && __builtin_cpu_supports("avx512bf16");
    case Isa::kAmx:
      return can_run(Isa::kAvx512Bf16) && __builtin_cpu_supports("amx-tile") &&
             __builtin_cpu_supports("amx-bf16") && may_use_matrix_units();
  }
  return false;
}

Isa best_isa() {
  if (is_intel(cpu_vendor()) && can_run(Isa::kAmx)) return Isa::kAmx;
  if (is_amd(cpu_vendor()) && can_run(Isa::kAvx512Bf16)) return Isa::kAvx512Bf16;
  if (can_run(Isa::kAvx512)) return Isa::kAvx512;
  if (can_run(Isa::kAvx2)) return Isa::kAvx2;
  throw Error(ExitCode::kUnsupported,
              "this CPU has no AVX2, FMA and F16C, which ftrun's CPU kernels need",
              "run on a CPU of 2015 or later (Intel Haswell, AMD Zen), or on a GPU");
}

void set_isa(Isa isa) {
  chosen_isa() = isa;
}

Isa isa_in_use() {
  return chosen_isa();
}

template <>
const VectorKernels<float>& vector_kernels<float>() {
  return chosen_isa() >= Isa::kAvx512 ? avx512::kFloat : avx2::kFloat;
}

template <>
const VectorKernels<double>& vector_kernels<double>() {
  return chosen_isa() >= Isa::kAvx512 ? avx512::kDouble : avx2::kDouble;
}

template <>
const VectorKernels<BFloat16>& vector_kernels<BFloat16>() {
  switch (chosen_isa()) {
    case Isa::kAvx2:
      return avx2::kBFloat16;
    case Isa::kAvx512:
      return avx512::kBFloat16;
    case Isa::kAvx512Bf16:
      return avx512_bf16::kBFloat16;
    case Isa::kAmx:
      return amx::kBFloat16;
  }
  return avx2::kBFloat16;
}

template <>
const VectorKernels<Float16>& vector_kernels<Float16>() {
  return chosen_isa() >= Isa::kAvx512 ? avx512::kFloat16 : avx2::kFloat16;
}

const FlatKernels& flat_kernels() {
  return chosen_isa() >= Isa::kAvx512 ? avx512::kFlat : avx2::kFlat;
}

}  // namespace ftrun
