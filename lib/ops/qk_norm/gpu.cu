#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/head_warps.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/qk_norm/qk_norm.h"

namespace ftrun::cuda {

namespace {

// Normalizes q and k heads and copies v heads, one warp per head.
template <class T, int V>
__global__ void qk_norm_heads(const T* qkv, NormedQkv<T> row, T* y, float* rstd, int64_t count,
                              float epsilon, float weight_offset) {
  const HeadOfToken h = head_of_warp(count, row.heads(), row.head_size);
  if (!h.exists) return;
  const T* const x = qkv + h.offset;
  T* const out = y + h.offset;
  if (h.head >= row.normed())
    return for_head<V>(row.head_size, [&](int i) { store(out + i, load<V>(x + i)); });
  float squares = 0.0F;
  for_head<V>(row.head_size, [&](int i) {
    const Floats<V> v = load<V>(x + i);
#pragma unroll
    for (int k = 0; k < V; ++k) squares += v[k] * v[k];
  });
  const float scale = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(row.head_size) + epsilon);
  if (threadIdx.x % 32 == 0) rstd[h.token * row.normed() + h.head] = scale;
  const T* const w = row.shared_weight(h.head);
  for_head<V>(row.head_size, [&](int i) {
    Floats<V> v = load<V>(x + i);
    const Floats<V> weight = load<V>(w + i);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = v[k] * scale * (weight[k] + weight_offset);
    store(out + i, v);
  });
}

template <class T, int V>
__global__ void qk_norm_dgrad_heads(const T* dy, const T* qkv, const float* rstd, NormedQkv<T> row,
                                    T* dqkv, int64_t count, float weight_offset) {
  const HeadOfToken h = head_of_warp(count, row.heads(), row.head_size);
  if (!h.exists) return;
  const T* const d = dy + h.offset;
  const T* const x = qkv + h.offset;
  T* const out = dqkv + h.offset;
  if (h.head >= row.normed())
    return for_head<V>(row.head_size, [&](int i) { store(out + i, load<V>(d + i)); });
  const T* const w = row.shared_weight(h.head);
  float projection = 0.0F;
  for_head<V>(row.head_size, [&](int i) {
    const Floats<V> g = load<V>(d + i), weight = load<V>(w + i), v = load<V>(x + i);
#pragma unroll
    for (int k = 0; k < V; ++k) projection += g[k] * (weight[k] + weight_offset) * v[k];
  });
  const float scale = rstd[h.token * row.normed() + h.head];
  const float along =
      warp_sum(projection) * scale * scale * scale / static_cast<float>(row.head_size);
  for_head<V>(row.head_size, [&](int i) {
    const Floats<V> g = load<V>(d + i), weight = load<V>(w + i), v = load<V>(x + i);
    Floats<V> sum;
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] = g[k] * (weight[k] + weight_offset) * scale - v[k] * along;
    store(out + i, sum);
  });
}

}  // namespace

void run_qk_norm(const Operation& op, const KernelLibraries& /*libraries*/) {
  const auto& heads = op.attrs<HeadAttrs>();
  with_head_vectors(
      op,
      [&](auto type, auto v) {
        using T = decltype(type);
        launch(head_launch(op), qk_norm_heads<T, decltype(v)::value>,
               static_cast<const T*>(op.in(0)), NormedQkv<T>(heads, op.in(1), op.in(2)),
               static_cast<T*>(op.out(0)), op.floats_out(1), op.in_dims(0)[0],
               static_cast<float>(heads.epsilon), static_cast<float>(heads.weight_offset));
      },
      op.in(0), op.in(1), op.in(2), op.out(0));
}

void run_qk_norm_dgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  const auto& heads = op.attrs<HeadAttrs>();
  with_head_vectors(
      op,
      [&](auto type, auto v) {
        using T = decltype(type);
        launch(head_launch(op), qk_norm_dgrad_heads<T, decltype(v)::value>,
               static_cast<const T*>(op.in(0)), static_cast<const T*>(op.in(1)), op.floats_in(2),
               NormedQkv<T>(heads, op.in(3), op.in(4)), static_cast<T*>(op.out(0)),
               op.in_dims(0)[0], static_cast<float>(heads.weight_offset));
      },
      op.in(0), op.in(1), op.in(3), op.in(4), op.out(0));
}

void run_qk_norm_wgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  const auto& attrs = op.attrs<HeadAttrs>();
  for (const size_t part : {size_t{0}, size_t{1}}) {
    VectorGradient g = gradient_of_heads(op, part, 2);
    g.heads = part == 0 ? attrs.query_heads : attrs.kv_heads;
    vector_gradient(op.dtype(), g, op.stream());
  }
}

}  // namespace ftrun::cuda
