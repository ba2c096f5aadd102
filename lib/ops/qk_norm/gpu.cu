#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/head_warps.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/qk_norm/qk_norm.h"

namespace ftrun::cuda {

namespace {

// Runs one warp a head. q and k heads are normalised, v heads copied.
template <class T, int V>
__global__ void qk_norm_heads(const T* qkv, const T* wq, const T* wk, T* y, float* rstd,
                              int64_t count, int q_heads, int k_heads, int head_size, float epsilon,
                              float weight_offset) {
  const HeadOfToken h = head_of_warp(count, q_heads + 2 * k_heads, head_size);
  if (!h.exists) return;
  const T* const x = qkv + h.at;
  T* const out = y + h.at;
  if (h.head >= q_heads + k_heads)
    return for_head<V>(head_size, [&](int i) { store(out + i, load<V>(x + i)); });
  float squares = 0.0F;
  for_head<V>(head_size, [&](int i) {
    const Floats<V> v = load<V>(x + i);
#pragma unroll
    for (int k = 0; k < V; ++k) squares += v[k] * v[k];
  });
  const float scale = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(head_size) + epsilon);
  if (threadIdx.x % 32 == 0) rstd[h.token * (q_heads + k_heads) + h.head] = scale;
  const T* const w = h.head < q_heads ? wq : wk;
  for_head<V>(head_size, [&](int i) {
    Floats<V> v = load<V>(x + i);
    const Floats<V> weight = load<V>(w + i);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = v[k] * scale * (weight[k] + weight_offset);
    store(out + i, v);
  });
}

template <class T, int V>
__global__ void qk_norm_dgrad_heads(const T* dy, const T* qkv, const float* rstd, const T* wq,
                                    const T* wk, T* dqkv, int64_t count, int q_heads, int k_heads,
                                    int head_size, float weight_offset) {
  const HeadOfToken h = head_of_warp(count, q_heads + 2 * k_heads, head_size);
  if (!h.exists) return;
  const T* const d = dy + h.at;
  const T* const x = qkv + h.at;
  T* const out = dqkv + h.at;
  if (h.head >= q_heads + k_heads)
    return for_head<V>(head_size, [&](int i) { store(out + i, load<V>(d + i)); });
  const T* const w = h.head < q_heads ? wq : wk;
  float projection = 0.0F;
  for_head<V>(head_size, [&](int i) {
    const Floats<V> g = load<V>(d + i), weight = load<V>(w + i), v = load<V>(x + i);
#pragma unroll
    for (int k = 0; k < V; ++k) projection += g[k] * (weight[k] + weight_offset) * v[k];
  });
  const float scale = rstd[h.token * (q_heads + k_heads) + h.head];
  const float along = warp_sum(projection) * scale * scale * scale / static_cast<float>(head_size);
  for_head<V>(head_size, [&](int i) {
    const Floats<V> g = load<V>(d + i), weight = load<V>(w + i), v = load<V>(x + i);
    Floats<V> sum;
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] = g[k] * (weight[k] + weight_offset) * scale - v[k] * along;
    store(out + i, sum);
  });
}

Launch qk_head_launch(int64_t count, const HeadAttrs& heads, cudaStream_t stream) {
  return head_launch(count, heads.query_heads + 2 * heads.kv_heads, stream);
}

void qk_norm(DType dtype, const void* qkv, const void* wq, const void* wk, void* y, float* rstd,
             int64_t count, const HeadAttrs& heads, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(heads.head_size, qkv, wq, wk, y), [&](auto v) {
      constexpr int V = decltype(v)::value > 1 ? 4 : 1;
      launch(qk_head_launch(count, heads, stream), qk_norm_heads<T, V>, static_cast<const T*>(qkv),
             static_cast<const T*>(wq), static_cast<const T*>(wk), static_cast<T*>(y), rstd, count,
             static_cast<int>(heads.query_heads), static_cast<int>(heads.kv_heads),
             static_cast<int>(heads.head_size), static_cast<float>(heads.epsilon),
             static_cast<float>(heads.weight_offset));
    });
  });
}

void qk_norm_dgrad(DType dtype, const void* dy, const void* qkv, const float* rstd, const void* wq,
                   const void* wk, void* dqkv, int64_t count, const HeadAttrs& heads,
                   cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(heads.head_size, dy, qkv, wq, wk, dqkv), [&](auto v) {
      constexpr int V = decltype(v)::value > 1 ? 4 : 1;
      launch(qk_head_launch(count, heads, stream), qk_norm_dgrad_heads<T, V>,
             static_cast<const T*>(dy), static_cast<const T*>(qkv), rstd, static_cast<const T*>(wq),
             static_cast<const T*>(wk), static_cast<T*>(dqkv), count,
             static_cast<int>(heads.query_heads), static_cast<int>(heads.kv_heads),
             static_cast<int>(heads.head_size), static_cast<float>(heads.weight_offset));
    });
  });
}

/// Computes the gradient of one of the two weights, that of `heads` heads of a row from
/// `first_head` on.
void weight_gradient_of_heads(const Operation& op, size_t out, int64_t first_head, int64_t heads) {
  const auto& attrs = op.attrs<HeadAttrs>();
  const int64_t skip = first_head * attrs.head_size * dtype_bytes(op.dtype());
  WeightGradient g = weight_gradient_of(op, out);
  g.dy = static_cast<const std::byte*>(op.in(0)) + skip;
  g.x = static_cast<const std::byte*>(op.in(1)) + skip;
  g.rstd = op.floats_in(2) + first_head;
  g.heads = heads;
  g.rstd_stride = attrs.query_heads + attrs.kv_heads;
  weight_gradient(op.dtype(), g, op.stream());
}

}  // namespace

void run_qk_norm(const Operation& op, const Libraries& /*libraries*/) {
  qk_norm(op.dtype(), op.in(0), op.in(1), op.in(2), op.out(0), op.floats_out(1), op.in_dims(0)[0],
          op.attrs<HeadAttrs>(), op.stream());
}

void run_qk_norm_dgrad(const Operation& op, const Libraries& /*libraries*/) {
  qk_norm_dgrad(op.dtype(), op.in(0), op.in(1), op.floats_in(2), op.in(3), op.in(4), op.out(0),
                op.in_dims(0)[0], op.attrs<HeadAttrs>(), op.stream());
}

void run_qk_norm_wgrad(const Operation& op, const Libraries& /*libraries*/) {
  const auto& attrs = op.attrs<HeadAttrs>();
  weight_gradient_of_heads(op, 0, 0, attrs.query_heads);
  weight_gradient_of_heads(op, 1, attrs.query_heads, attrs.kv_heads);
}

}  // namespace ftrun::cuda
