#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/operation.h"

// The functions of this header run operations whose result is a function of one element of each
// operand.
namespace ftrun::cuda {

/// Computes y[i] = f(a[i]) or, if f takes two numbers, f(a[i], b[i]), with V elements per thread. y
/// may be an operand.
template <class T, int V, class F>
__global__ void map_elements(const T* a, const T* b, T* y, int64_t count, F f) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (i >= count) return;
  Floats<V> v = load<V>(a + i);
  if constexpr (std::is_invocable_v<F, float, float>) {
    const Floats<V> w = load<V>(b + i);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = f(v[k], w[k]);
  } else {
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = f(v[k]);
  }
  store(y + i, v);
}

/// Enqueues map_elements() from an operation's first operands to its first result. `f` has a
/// __device__ float operator()(float [, float]) const.
template <class F>
void run_by_element(const Operation& op, F f) {
  const int64_t count = element_count(op.in_dims(0));
  with_type(op.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto* const a = static_cast<const T*>(op.in(0));
    const T* b = nullptr;
    if constexpr (std::is_invocable_v<F, float, float>) b = static_cast<const T*>(op.in(1));
    auto* const y = static_cast<T*>(op.out(0));
    with_vectors<T>(vectors_fit<T>(count, a, b, y), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(divide_up(count / V, kPointwiseThreads)), kPointwiseThreads, 0, op.stream()},
             map_elements<T, V, F>, a, b, y, count, f);
    });
  });
}

}  // namespace ftrun::cuda
