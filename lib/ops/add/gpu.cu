#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/add/add.h"

namespace ftrun::cuda {

namespace {

template <class T, int V>
__global__ void add_elements(const T* a, const T* b, T* out, int64_t count) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (i >= count) return;
  Floats<V> sum = load<V>(a + i);
  const Floats<V> more = load<V>(b + i);
#pragma unroll
  for (int k = 0; k < V; ++k) sum[k] += more[k];
  store(out + i, sum);
}

void add(DType dtype, const void* a, const void* b, void* out, int64_t count, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(count, a, b, out), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(divide_up(count / V, kPointwiseThreads)), kPointwiseThreads, 0, stream}, add_elements<T, V>,
             static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), count);
    });
  });
}

}  // namespace

void run_add(const Operation& op, const Libraries& /*libraries*/) {
  add(op.dtype(), op.in(0), op.in(1), op.out(0), element_count(op.in_dims(0)), op.stream());
}

}  // namespace ftrun::cuda
