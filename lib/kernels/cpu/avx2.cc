#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/vector_kernels.h"
#include "optimizers/code_map.h"

namespace ftrun::avx2 {
namespace {
constexpr int kVectorBytes = 32;
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;
// The order matters: each file uses definitions of the files before it.
#include "kernels/cpu/simd.inc"

#include "kernels/cpu/row_kernels.inc"

#include "ops/rows.inc"

#include "kernels/cpu/attention_tiles.inc"
#include "kernels/cpu/flat_kernels.inc"
#include "kernels/cpu/vector_table.inc"
}  // namespace
#include "kernels/cpu/all_tables.inc"
}  // namespace ftrun::avx2
