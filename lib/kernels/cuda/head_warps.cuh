#pragma once

#include <cstdint>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"

namespace ftrun::cuda {

/// HeadOfToken is a warp's place among the heads of all tokens.
struct HeadOfToken {
  int64_t token;
  int head;
  /// Elements before this head's.
  int64_t at;
  bool exists;
};

/// Returns the place of this warp among `count` tokens of `heads` heads, a warp each.
__device__ inline HeadOfToken head_of_warp(int64_t count, int heads, int head_size) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  return {item / heads, static_cast<int>(item % heads), item * head_size, item < count * heads};
}

/// Runs `body` on what a warp reads of a head at a time: V elements a lane where they can be moved
/// at once, so that heads of 128 keep all lanes busy.
template <int V, class Body>
__device__ void for_head(int head_size, Body body) {
  for (int i = threadIdx.x % 32 * V; i < head_size; i += 32 * V) body(i);
}

/// Returns the launch of a warp for each of `heads` heads of `count` tokens.
inline Launch head_launch(int64_t count, int64_t heads, cudaStream_t stream) {
  constexpr int kHeadThreads = 128;
  return {blocks(divide_up(count * heads, kHeadThreads / 32)), kHeadThreads, 0, stream};
}

}  // namespace ftrun::cuda
