#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"
#include "ops/scale/scale.h"

namespace ftrun::cuda {

namespace {

template <class T, int V>
__global__ void scale_elements(const T* x, T* y, int64_t count, float factor) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (i >= count) return;
  Floats<V> v = load<V>(x + i);
#pragma unroll
  for (int k = 0; k < V; ++k) v[k] *= factor;
  store(y + i, v);
}

}  // namespace

void run_scale(const Operation& op, const Libraries& /*libraries*/) {
  const int64_t count = element_count(op.in_dims(0));
  const auto factor = static_cast<float>(op.attrs<ScaleAttrs>().factor);
  with_type(op.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto* const x = static_cast<const T*>(op.in(0));
    auto* const y = static_cast<T*>(op.out(0));
    with_vectors<T>(vectors_fit<T>(count, x, y), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(divide_up(count / V, kPointwiseThreads)), kPointwiseThreads, 0, op.stream()},
             scale_elements<T, V>, x, y, count, factor);
    });
  });
}

}  // namespace ftrun::cuda
