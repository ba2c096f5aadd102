// This file compiles the attention of kernels/cpu/amx.cc with vector instructions in place of
// matrix units (AMX), for CPUs without AMX. It needs AVX-512 with avx512_bf16; amx_test.cc calls it
// where the CPU has that.
#include "amx_on_vectors.h"

#include <immintrin.h>

#include <cstddef>

namespace ftrun::amx_on_vectors {
namespace {
#include "kernels/cpu/avx512.inc"

struct Tile {
  Words rows[16];
};
thread_local Tile tiles[8];
thread_local bool in_use = false;

template <int kTile>
void clear_tile() {
  if (!in_use) __builtin_trap();
  tiles[kTile] = {};
}
template <int kTile>
void load_tile(const void* p, int64_t stride) {
  if (!in_use) __builtin_trap();
  for (int64_t row = 0; row < 16; ++row)
    __builtin_memcpy(&tiles[kTile].rows[row], static_cast<const char*>(p) + row * stride,
                     sizeof(Words));
}
template <int kTile>
void store_tile(void* p, int64_t stride) {
  if (!in_use) __builtin_trap();
  for (int64_t row = 0; row < 16; ++row)
    __builtin_memcpy(static_cast<char*>(p) + row * stride, &tiles[kTile].rows[row], sizeof(Words));
}
template <int kSum, int kLeft, int kRight>
void multiply_tiles() {
  if (!in_use) __builtin_trap();
  for (int64_t row = 0; row < 16; ++row) {
    auto sum = (Vec<float>)tiles[kSum].rows[row];
    for (int64_t k = 0; k < 16; ++k) {
      const Words left = tiles[kLeft].rows[row][k] - Words{};
      sum = (Vec<float>)_mm512_dpbf16_ps(sum, (__m512bh)left, (__m512bh)tiles[kRight].rows[k]);
    }
    tiles[kSum].rows[row] = (Words)sum;
  }
}
class TilesInUse {
 public:
  TilesInUse() {
    in_use = true;
    for (Tile& tile : tiles) tile = {};
  }
  ~TilesInUse() {
    in_use = false;
    for (Tile& tile : tiles)
      for (Words& row : tile.rows) row = ~Words{};  // NaN
  }
};

#include "kernels/cpu/amx_matmul.inc"
}  // namespace
constinit const VectorKernels<BFloat16> kBFloat16 = make_amx_table();
}  // namespace ftrun::amx_on_vectors
