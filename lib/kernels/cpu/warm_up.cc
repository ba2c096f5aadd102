#include "kernels/cpu/gemm.h"
#include "kernels/kernels.h"

namespace ftrun {

void warm_up_products(void* memory) {
  constexpr int64_t kSide = kWarmUpSide;
  auto* const a = static_cast<float*>(memory);
  float* const b = a + kSide * kSide;
  gemm({.m = kSide, .n = kSide, .k = kSide}, a, kSide, b, kSide, 0.0, b + kSide * kSide, kSide);
  if (!multiplies_bf16()) return;
  const auto* const narrow = static_cast<const BFloat16*>(memory);
  gemm({.m = kSide, .n = kSide, .k = kSide}, narrow, kSide, narrow, kSide, 0.0, b + kSide * kSide,
       kSide);
}

}  // namespace ftrun
