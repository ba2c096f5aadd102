#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vector_kernels.h"
#include "needs.h"

namespace ftrun {
namespace {

const testing::Need kAvx512("avx512", [] {
  return best_isa() >= Isa::kAvx512 ? "" : "this processor has no AVX-512 (F, BW, DQ and VL)";
});

const testing::Need kBf16Attention("avx512_bf16", [] {
  return best_isa() >= Isa::kAvx512Bf16 ? "" : "this processor has neither matrix units nor AMD's avx512_bf16";
});

const testing::Need kAmx("amx", [] {
  return multiplies_bf16() ? "" : "this processor has no matrix units for bf16 (AMX)";
});

}  // namespace
}  // namespace ftrun
