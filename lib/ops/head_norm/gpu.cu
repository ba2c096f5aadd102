#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/head_warps.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/head_norm/head_norm.h"

namespace ftrun::cuda {

namespace {

// Normalizes q and k heads and copies v heads, one warp per head. It reads a head three times, the
// second and the third time from the caches.
template <class T, int V>
__global__ void head_norm_heads(const T* qkv, NormedQkv<T> row, T* y, float* mean, float* rstd,
                                int64_t count, float epsilon) {
  const HeadOfToken h = head_of_warp(count, row.heads(), row.head_size);
  if (!h.exists) return;
  const T* const x = qkv + h.offset;
  T* const out = y + h.offset;
  if (h.head >= row.normed())
    return for_head<V>(row.head_size, [&](int i) { store(out + i, load<V>(x + i)); });
  float sum = 0.0F, squares = 0.0F;
  for_head<V>(row.head_size, [&](int i) {
    const Floats<V> v = load<V>(x + i);
#pragma unroll
    for (int k = 0; k < V; ++k) sum += v[k];
  });
  const float middle = warp_sum(sum) / static_cast<float>(row.head_size);
  for_head<V>(row.head_size, [&](int i) {
    const Floats<V> v = load<V>(x + i);
#pragma unroll
    for (int k = 0; k < V; ++k) squares += (v[k] - middle) * (v[k] - middle);
  });
  const float scale = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(row.head_size) + epsilon);
  if (threadIdx.x % 32 == 0) {
    const int64_t statistic = h.token * row.normed() + h.head;
    mean[statistic] = middle;
    rstd[statistic] = scale;
  }
  const T* const w = row.weight_of_head(h.head);
  for_head<V>(row.head_size, [&](int i) {
    Floats<V> v = load<V>(x + i);
    const Floats<V> weight = load<V>(w + i);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = (v[k] - middle) * scale * weight[k];
    store(out + i, v);
  });
}

// Computes dx = rstd (g - mean(g) - xhat mean(g xhat)) of each head, with g = dy w.
template <class T, int V>
__global__ void head_norm_dgrad_heads(const T* dy, const T* qkv, const float* mean,
                                      const float* rstd, NormedQkv<T> row, T* dqkv, int64_t count) {
  const HeadOfToken h = head_of_warp(count, row.heads(), row.head_size);
  if (!h.exists) return;
  const T* const d = dy + h.offset;
  const T* const x = qkv + h.offset;
  T* const out = dqkv + h.offset;
  if (h.head >= row.normed())
    return for_head<V>(row.head_size, [&](int i) { store(out + i, load<V>(d + i)); });
  const T* const w = row.weight_of_head(h.head);
  const int64_t statistic = h.token * row.normed() + h.head;
  const float middle = mean[statistic], scale = rstd[statistic];
  float sum = 0.0F, projection = 0.0F;
  for_head<V>(row.head_size, [&](int i) {
    const Floats<V> g = load<V>(d + i), weight = load<V>(w + i), v = load<V>(x + i);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      sum += g[k] * weight[k];
      projection += g[k] * weight[k] * (v[k] - middle);
    }
  });
  const auto size = static_cast<float>(row.head_size);
  const float shift = warp_sum(sum) * scale / size;
  const float along = warp_sum(projection) * scale * scale * scale / size;
  for_head<V>(row.head_size, [&](int i) {
    const Floats<V> g = load<V>(d + i), weight = load<V>(w + i), v = load<V>(x + i);
    Floats<V> result;
#pragma unroll
    for (int k = 0; k < V; ++k)
      result[k] = g[k] * weight[k] * scale - shift - (v[k] - middle) * along;
    store(out + i, result);
  });
}

}  // namespace

void run_head_norm(const Operation& op, const KernelLibraries& /*libraries*/) {
  const auto& heads = op.attrs<HeadAttrs>();
  with_head_vectors(
      op,
      [&](auto type, auto v) {
        using T = decltype(type);
        launch(head_launch(op), head_norm_heads<T, decltype(v)::value>,
               static_cast<const T*>(op.in(0)), NormedQkv<T>(heads, op.in(1), op.in(2)),
               static_cast<T*>(op.out(0)), op.floats_out(1), op.floats_out(2), op.in_dims(0)[0],
               static_cast<float>(heads.epsilon));
      },
      op.in(0), op.in(1), op.in(2), op.out(0));
}

void run_head_norm_dgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  const auto& heads = op.attrs<HeadAttrs>();
  with_head_vectors(
      op,
      [&](auto type, auto v) {
        using T = decltype(type);
        launch(head_launch(op), head_norm_dgrad_heads<T, decltype(v)::value>,
               static_cast<const T*>(op.in(0)), static_cast<const T*>(op.in(1)), op.floats_in(2),
               op.floats_in(3), NormedQkv<T>(heads, op.in(4), op.in(5)), static_cast<T*>(op.out(0)),
               op.in_dims(0)[0]);
      },
      op.in(0), op.in(1), op.in(4), op.in(5), op.out(0));
}

void run_head_norm_wgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  const auto& heads = op.attrs<HeadAttrs>();
  for (const size_t part : {size_t{0}, size_t{1}}) {
    VectorGradient g = gradient_of_heads(op, part, 3);
    g.mean = op.floats_in(2) + (part == 0 ? 0 : heads.query_heads);
    g.rstd_columns = heads.head_size;
    vector_gradient(op.dtype(), g, op.stream());
  }
}

}  // namespace ftrun::cuda
