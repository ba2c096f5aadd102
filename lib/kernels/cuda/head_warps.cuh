#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/heads.h"

namespace ftrun::cuda {

/// HeadOfToken is the head, among those of all tokens, that a warp processes.
struct HeadOfToken {
  int64_t token;
  int head;
  /// The number of elements before this head's.
  int64_t offset;
  bool exists;
};

/// Returns the head of this warp, if each of `heads` heads of each of `count` tokens has a warp.
__device__ inline HeadOfToken head_of_warp(int64_t count, int heads, int head_size) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  return {item / heads, static_cast<int>(item % heads), item * head_size, item < count * heads};
}

/// Calls `body(i)` with the first of each V elements of a head that this lane processes. The lanes
/// of a warp process neighboring elements.
template <int V, class Body>
__device__ void for_head(int head_size, Body body) {
  for (int i = threadIdx.x % 32 * V; i < head_size; i += 32 * V) body(i);
}

/// NormedQkv holds the heads of a qkv row whose queries and keys are normalized, and the weights of
/// their norms.
template <class T>
struct NormedQkv {
  NormedQkv(const HeadAttrs& attrs, const void* weight_q, const void* weight_k)
      : wq(static_cast<const T*>(weight_q)),
        wk(static_cast<const T*>(weight_k)),
        q_heads(static_cast<int>(attrs.query_heads)),
        k_heads(static_cast<int>(attrs.kv_heads)),
        head_size(static_cast<int>(attrs.head_size)) {}
  const T* wq;
  const T* wk;
  int q_heads, k_heads, head_size;

  __device__ int heads() const { return q_heads + 2 * k_heads; }
  __device__ int normed() const { return q_heads + k_heads; }
  /// Returns the weights of a head if all query heads share their weights, and all key heads do.
  __device__ const T* shared_weight(int head) const { return head < q_heads ? wq : wk; }
  /// Returns the weights of a head if each head has its own.
  __device__ const T* weight_of_head(int head) const {
    return head < q_heads ? wq + static_cast<int64_t>(head) * head_size
                          : wk + static_cast<int64_t>(head - q_heads) * head_size;
  }
};

/// Returns the launch with one warp for each head of the operation's qkv rows.
inline Launch head_launch(const Operation& op) {
  constexpr int kHeadThreads = 128;
  const auto& attrs = op.attrs<HeadAttrs>();
  const int64_t heads = op.in_dims(0)[0] * (attrs.query_heads + 2 * attrs.kv_heads);
  return {blocks(divide_up(heads, kHeadThreads / 32)), kHeadThreads, 0, op.stream()};
}

/// Calls f(type, vectors) with the dtype of the activations and the number of elements of a head at
/// these addresses that can be moved at once.
template <class F, class... Pointers>
void with_head_vectors(const Operation& op, F f, Pointers... pointers) {
  with_type(op.dtype(), [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(op.attrs<HeadAttrs>().head_size, pointers...), [&](auto v) {
      constexpr int kElements = decltype(v)::value > 1 ? 4 : 1;
      f(type, std::integral_constant<int, kElements>{});
    });
  });
}

/// Returns the gradient of the weights of query heads (part 0) or key heads (part 1). The
/// operation's input number `rstd` holds rstd, a number for each normalized head of a token.
inline VectorGradient gradient_of_heads(const Operation& op, size_t part, size_t rstd) {
  const auto& attrs = op.attrs<HeadAttrs>();
  const int64_t first = part == 0 ? 0 : attrs.query_heads;
  const int64_t skip = first * attrs.head_size * dtype_bytes(op.dtype());
  VectorGradient g = vector_gradient_of(op, part);
  g.dy = static_cast<const std::byte*>(op.in(0)) + skip;
  g.x = static_cast<const std::byte*>(op.in(1)) + skip;
  g.rstd = op.floats_in(rstd) + first;
  g.rstd_stride = attrs.query_heads + attrs.kv_heads;
  return g;
}

}  // namespace ftrun::cuda
