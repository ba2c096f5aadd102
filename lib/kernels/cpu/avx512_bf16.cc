#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/vector_kernels.h"

namespace ftrun::avx512_bf16 {
namespace {
constexpr int kVectorBytes = 64;
constexpr int kTileRows = 6;
constexpr int kTileVectors = 4;
constexpr int64_t kDepthStep = 1;
// Each file uses what the ones before it define.
#include "kernels/cpu/simd.inc"

#include "kernels/cpu/row_kernels.inc"

#include "kernels/cpu/attention_tiles.inc"
#include "kernels/cpu/bf16_pairs.inc"
#include "kernels/cpu/vector_table.inc"
}  // namespace
constinit const VectorKernels<BFloat16> kBFloat16 = make_table<BFloat16>();
}  // namespace ftrun::avx512_bf16
