#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"
#include "ops/softcap/softcap.h"

namespace ftrun::cuda {

namespace {

template <class T, int V>
__global__ void cap_elements(const T* x, T* y, int64_t count, float bound) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (i >= count) return;
  Floats<V> v = load<V>(x + i);
#pragma unroll
  for (int k = 0; k < V; ++k) v[k] = bound * tanhf(v[k] / bound);
  store(y + i, v);
}

template <class T, int V>
__global__ void cap_gradients(const T* dy, const T* y, T* dx, int64_t count, float bound) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (i >= count) return;
  Floats<V> d = load<V>(dy + i);
  const Floats<V> capped = load<V>(y + i);
#pragma unroll
  for (int k = 0; k < V; ++k) d[k] *= 1.0F - capped[k] / bound * (capped[k] / bound);
  store(dx + i, d);
}

/// The launch of a kernel over all elements, V a thread.
Launch element_launch(const Operation& op, int64_t count, int vector) {
  return {blocks(divide_up(count / vector, kPointwiseThreads)), kPointwiseThreads, 0, op.stream()};
}

}  // namespace

void run_softcap(const Operation& op, const Libraries& /*libraries*/) {
  const int64_t count = element_count(op.in_dims(0));
  const auto bound = static_cast<float>(op.attrs<SoftcapAttrs>().bound);
  with_type(op.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto* const x = static_cast<const T*>(op.in(0));
    auto* const y = static_cast<T*>(op.out(0));
    with_vectors<T>(vectors_fit<T>(count, x, y), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch(element_launch(op, count, V), cap_elements<T, V>, x, y, count, bound);
    });
  });
}

void run_softcap_dgrad(const Operation& op, const Libraries& /*libraries*/) {
  const int64_t count = element_count(op.in_dims(0));
  const auto bound = static_cast<float>(op.attrs<SoftcapAttrs>().bound);
  with_type(op.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto* const dy = static_cast<const T*>(op.in(0));
    const auto* const y = static_cast<const T*>(op.in(1));
    auto* const dx = static_cast<T*>(op.out(0));
    with_vectors<T>(vectors_fit<T>(count, dy, y, dx), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch(element_launch(op, count, V), cap_gradients<T, V>, dy, y, dx, count, bound);
    });
  });
}

}  // namespace ftrun::cuda
