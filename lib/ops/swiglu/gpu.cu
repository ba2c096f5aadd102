#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/swiglu/swiglu.h"

namespace ftrun::cuda {

namespace {

__device__ inline float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

template <class T, int V>
__global__ void swiglu_rows(const T* gu, T* s, int64_t width) {
  const T* const gate = gu + blockIdx.x * 2 * width;
  T* const out = s + blockIdx.x * width;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> g = load<V>(gate + i), u = load<V>(gate + width + i);
    Floats<V> v;
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = g[k] * sigmoid(g[k]) * u[k];
    store(out + i, v);
  }
}

// d silu(g) = sigma (1 + g (1 - sigma)). dgu may be gu.
template <class T, int V>
__global__ void swiglu_dgrad_rows(const T* ds, const T* gu, T* dgu, int64_t width) {
  const int64_t at = blockIdx.x * 2 * width;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> d = load<V>(ds + blockIdx.x * width + i);
    const Floats<V> g = load<V>(gu + at + i), u = load<V>(gu + at + width + i);
    Floats<V> dgate, dup;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float sigma = sigmoid(g[k]);
      dup[k] = d[k] * g[k] * sigma;
      dgate[k] = d[k] * u[k] * sigma * (1.0F + g[k] * (1.0F - sigma));
    }
    store(dgu + at + i, dgate);
    store(dgu + at + width + i, dup);
  }
}

/// `width` is F.
void swiglu(DType dtype, const void* gu, void* s, int64_t count, int64_t width,
            cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(width, gu, s), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(count), static_cast<unsigned>(threads_for(width / V, kPointwiseThreads)), 0,
              stream},
             swiglu_rows<T, V>, static_cast<const T*>(gu), static_cast<T*>(s), width);
    });
  });
}

void swiglu_dgrad(DType dtype, const void* ds, const void* gu, void* dgu, int64_t count,
                  int64_t width, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(width, ds, gu, dgu), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(count), static_cast<unsigned>(threads_for(width / V, kPointwiseThreads)), 0,
              stream},
             swiglu_dgrad_rows<T, V>, static_cast<const T*>(ds), static_cast<const T*>(gu),
             static_cast<T*>(dgu), width);
    });
  });
}

}  // namespace

void run_swiglu(const Operation& op, const Libraries& /*libraries*/) {
  swiglu(op.dtype(), op.in(0), op.out(0), op.in_dims(0)[0], op.in_dims(0)[1] / 2, op.stream());
}

void run_swiglu_dgrad(const Operation& op, const Libraries& /*libraries*/) {
  swiglu_dgrad(op.dtype(), op.in(0), op.in(1), op.out(0), op.in_dims(0)[0], op.in_dims(0)[1],
               op.stream());
}

}  // namespace ftrun::cuda
