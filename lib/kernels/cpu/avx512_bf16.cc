#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/vector_kernels.h"

namespace ftrun::avx512_bf16 {
namespace {
#include "kernels/cpu/avx512.inc"

constexpr int64_t kDepthStep = 1;
#include "kernels/cpu/bf16_pairs.inc"

#include "kernels/cpu/vector_table.inc"
}  // namespace
constinit const VectorKernels<BFloat16> kBFloat16 = make_table<BFloat16>();
}  // namespace ftrun::avx512_bf16
