#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/whole_qk_norm/whole_qk_norm.h"

namespace ftrun::cuda {

namespace {

constexpr int kWholeNormThreads = 256;

/// QkvRow holds the numbers of elements of a qkv row: queries, keys, and as many values as keys.
struct QkvRow {
  int queries, keys;
  __device__ int64_t width() const { return queries + int64_t{2} * keys; }
  __device__ int first(int part) const { return part == 0 ? 0 : queries; }
  __device__ int count(int part) const { return part == 0 ? queries : keys; }
};

/// WholeCounts holds the numbers of elements that all ranks have of queries and of keys.
struct WholeCounts {
  float queries, keys;
  __device__ float operator[](int part) const { return part == 0 ? queries : keys; }
};

template <class T>
struct WholeWeights {
  const T* queries;
  const T* keys;
  __device__ const T* operator[](int part) const { return part == 0 ? queries : keys; }
};

template <int V, class Body>
__device__ void for_part(int count, Body body) {
  for (int i = threadIdx.x * V; i < count; i += blockDim.x * V) body(i);
}

// Runs one block per token.
template <class T, int V>
__global__ void qk_dot_rows(const T* a, const T* b, WholeWeights<T> weights, float* dots,
                            QkvRow row) {
  const int64_t n = blockIdx.x;
  for (int part = 0; part < 2; ++part) {
    const int64_t at = n * row.width() + row.first(part);
    const T* const w = weights[part];
    float sum = 0.0F;
    for_part<V>(row.count(part), [&](int i) {
      const Floats<V> u = load<V>(a + at + i), v = load<V>(b + at + i);
      Floats<V> weight;
      if (w != nullptr) weight = load<V>(w + i);
#pragma unroll
      for (int k = 0; k < V; ++k) sum += w != nullptr ? u[k] * v[k] * weight[k] : u[k] * v[k];
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) dots[2 * n + part] = sum;
  }
}

template <class T, int V>
__global__ void whole_qk_norm_rows(const T* qkv, const float* squares, WholeWeights<T> weights,
                                   T* y, float* rstd, QkvRow row, WholeCounts counts,
                                   float epsilon) {
  const int64_t n = blockIdx.x, token = n * row.width();
  for (int part = 0; part < 2; ++part) {
    const float scale = 1.0F / sqrtf(squares[2 * n + part] / counts[part] + epsilon);
    if (threadIdx.x == 0) rstd[2 * n + part] = scale;
    const int64_t at = token + row.first(part);
    for_part<V>(row.count(part), [&](int i) {
      Floats<V> v = load<V>(qkv + at + i);
      const Floats<V> weight = load<V>(weights[part] + i);
#pragma unroll
      for (int k = 0; k < V; ++k) v[k] = v[k] * scale * weight[k];
      store(y + at + i, v);
    });
  }
  const int64_t values = token + row.queries + row.keys;
  for_part<V>(row.keys, [&](int i) { store(y + values + i, load<V>(qkv + values + i)); });
}

template <class T, int V>
__global__ void whole_qk_norm_dgrad_rows(const T* dy, const T* qkv, const float* rstd,
                                         const float* dots, WholeWeights<T> weights, T* dqkv,
                                         QkvRow row, WholeCounts counts) {
  const int64_t n = blockIdx.x, token = n * row.width();
  for (int part = 0; part < 2; ++part) {
    const float scale = rstd[2 * n + part];
    const float along = dots[2 * n + part] * scale * scale * scale / counts[part];
    const int64_t at = token + row.first(part);
    for_part<V>(row.count(part), [&](int i) {
      Floats<V> g = load<V>(dy + at + i);
      const Floats<V> v = load<V>(qkv + at + i), weight = load<V>(weights[part] + i);
#pragma unroll
      for (int k = 0; k < V; ++k) g[k] = g[k] * weight[k] * scale - v[k] * along;
      store(dqkv + at + i, g);
    });
  }
  const int64_t values = token + row.queries + row.keys;
  for_part<V>(row.keys, [&](int i) { store(dqkv + values + i, load<V>(dy + values + i)); });
}

QkvRow row_of(const WholeQkNormAttrs& attrs) {
  return {static_cast<int>(attrs.query_elements()), static_cast<int>(attrs.key_elements())};
}

WholeCounts counts_of(const WholeQkNormAttrs& attrs) {
  return {static_cast<float>(attrs.ranks * attrs.query_elements()),
          static_cast<float>(attrs.ranks * attrs.key_elements())};
}

/// Calls f(type, vectors) with the dtype of the activations, and the number of elements of queries,
/// keys and rows at these addresses that can be moved at once.
template <class F, class... Pointers>
void with_rows(const Operation& op, F f, Pointers... pointers) {
  const QkvRow row = row_of(op.attrs<WholeQkNormAttrs>());
  with_type(op.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool fit = vectors_fit<T>(row.queries) && vectors_fit<T>(row.keys, pointers...);
    with_vectors<T>(fit, [&](auto v) { f(type, v); });
  });
}

Launch token_launch(const Operation& op) {
  return {blocks(op.in_dims(0)[0]), kWholeNormThreads, 0, op.stream()};
}

}  // namespace

void run_qk_dots(const Operation& op, const KernelLibraries& /*libraries*/) {
  const void* const wq = op.has_in(2) ? op.in(2) : nullptr;
  const void* const wk = op.has_in(3) ? op.in(3) : nullptr;
  with_rows(
      op,
      [&](auto type, auto v) {
        using T = decltype(type);
        const WholeWeights<T> weights{static_cast<const T*>(wq), static_cast<const T*>(wk)};
        launch(token_launch(op), qk_dot_rows<T, decltype(v)::value>,
               static_cast<const T*>(op.in(0)), static_cast<const T*>(op.in(1)), weights,
               op.floats_out(0), row_of(op.attrs<WholeQkNormAttrs>()));
      },
      op.in(0), op.in(1), wq, wk);
}

void run_whole_qk_norm(const Operation& op, const KernelLibraries& /*libraries*/) {
  const auto& attrs = op.attrs<WholeQkNormAttrs>();
  with_rows(
      op,
      [&](auto type, auto v) {
        using T = decltype(type);
        const WholeWeights<T> weights{static_cast<const T*>(op.in(2)),
                                      static_cast<const T*>(op.in(3))};
        launch(token_launch(op), whole_qk_norm_rows<T, decltype(v)::value>,
               static_cast<const T*>(op.in(0)), op.floats_in(1), weights,
               static_cast<T*>(op.out(0)), op.floats_out(1), row_of(attrs), counts_of(attrs),
               static_cast<float>(attrs.heads.epsilon));
      },
      op.in(0), op.in(2), op.in(3), op.out(0));
}

void run_whole_qk_norm_dgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  const auto& attrs = op.attrs<WholeQkNormAttrs>();
  with_rows(
      op,
      [&](auto type, auto v) {
        using T = decltype(type);
        const WholeWeights<T> weights{static_cast<const T*>(op.in(4)),
                                      static_cast<const T*>(op.in(5))};
        launch(token_launch(op), whole_qk_norm_dgrad_rows<T, decltype(v)::value>,
               static_cast<const T*>(op.in(0)), static_cast<const T*>(op.in(1)), op.floats_in(2),
               op.floats_in(3), weights, static_cast<T*>(op.out(0)), row_of(attrs),
               counts_of(attrs));
      },
      op.in(0), op.in(1), op.in(4), op.in(5), op.out(0));
}

void run_whole_qk_norm_wgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  const auto& attrs = op.attrs<WholeQkNormAttrs>();
  for (const size_t part : {size_t{0}, size_t{1}}) {
    const int64_t skip = part == 0 ? 0 : attrs.query_elements() * dtype_bytes(op.dtype());
    VectorGradient g = vector_gradient_of(op, part);
    g.dy = static_cast<const std::byte*>(op.in(0)) + skip;
    g.x = static_cast<const std::byte*>(op.in(1)) + skip;
    g.rstd = op.floats_in(2) + part;
    g.rstd_stride = 2;
    vector_gradient(op.dtype(), g, op.stream());
  }
}

}  // namespace ftrun::cuda
