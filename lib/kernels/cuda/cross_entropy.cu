#include <cfloat>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"

namespace ftrun::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr double kNan = __builtin_nan("");

/// The largest of some numbers and the sum of exp(number - largest). NaN and infinity among the
/// numbers make the sum NaN.
struct MaxSum {
  float max = -FLT_MAX;
  float sum = 0.0F;
};

__device__ inline MaxSum join(const MaxSum& a, const MaxSum& b) {
  const float max = fmaxf(a.max, b.max);
  return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}

__device__ inline MaxSum warp_join(MaxSum x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    x = join(x, {__shfl_xor_sync(0xffffffffU, x.max, step), __shfl_xor_sync(0xffffffffU, x.sum, step)});
  return x;
}

__device__ inline MaxSum block_join(MaxSum x) {
  __shared__ MaxSum parts[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  x = warp_join(x);
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  return warp_join(lane < kWarps ? parts[lane] : MaxSum{});
}

template <class T, int V>
__device__ MaxSum row_max_sum(const T* row, int64_t count) {
  MaxSum x;
  for (int64_t i = threadIdx.x * V; i < count; i += kThreads * V) {
    const Floats<V> v = load<V>(row + i);
    float max = x.max;
#pragma unroll
    for (int k = 0; k < V; ++k) max = fmaxf(max, v[k]);
    float sum = 0.0F;
#pragma unroll
    for (int k = 0; k < V; ++k) sum += expf(v[k] - max);
    x = {max, x.sum * expf(x.max - max) + sum};
  }
  return block_join(x);
}

// One block a row: the loss, and (softmax - onehot) * loss_scale in place of the logits.
template <class T, int V>
__global__ void softmax_rows(T* logits, const int32_t* labels, double* losses, int64_t vocabulary,
                             bool with_gradients, const StepScalars* scalars) {
  T* const row = logits + blockIdx.x * vocabulary;
  const int32_t label = labels[blockIdx.x];
  if (label < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0.0;
    if (with_gradients)
      for (int64_t i = threadIdx.x * V; i < vocabulary; i += kThreads * V) store(row + i, Floats<V>{});
    return;
  }
  const MaxSum stats = row_max_sum<T, V>(row, vocabulary);
  const bool known = label < vocabulary;
  if (threadIdx.x == 0)
    losses[blockIdx.x] = known ? static_cast<double>(stats.max) + log(static_cast<double>(stats.sum)) -
                                     static_cast<double>(to_float(row[label]))
                               : kNan;
  if (!with_gradients) return;
  __syncthreads();  // the label's logit is read before it is overwritten
  const float scale = scalars->loss_scale, factor = scale / stats.sum;
  for (int64_t i = threadIdx.x * V; i < vocabulary; i += kThreads * V) {
    Floats<V> v = load<V>(row + i);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = expf(v[k] - stats.max) * factor - (i + k == label ? scale : 0.0F);
    store(row + i, v);
  }
}

// One block. Each thread adds its losses in order, then the threads' sums are added in a tree.
__global__ void sum_losses(const double* losses, const int32_t* labels, int64_t rows, double* loss) {
  __shared__ double sums[kThreads], counts[kThreads];
  double sum = 0.0, count = 0.0;
  for (int64_t n = threadIdx.x; n < rows; n += kThreads) {
    sum += losses[n];
    count += labels[n] >= 0 ? 1.0 : 0.0;
  }
  sums[threadIdx.x] = sum;
  counts[threadIdx.x] = count;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (static_cast<int>(threadIdx.x) < width) {
      sums[threadIdx.x] += sums[threadIdx.x + width];
      counts[threadIdx.x] += counts[threadIdx.x + width];
    }
    __syncthreads();
  }
  if (threadIdx.x > 0) return;
  loss[0] += sums[0];
  loss[1] += counts[0];
}

}  // namespace

void softmax_loss(DType dtype, const SoftmaxLoss& s, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(s.vocabulary, s.logits), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(s.rows), kThreads, 0, stream}, softmax_rows<T, V>, static_cast<T*>(s.logits), s.labels, s.losses,
             s.vocabulary, s.with_gradients, s.scalars);
    });
  });
}

void add_losses(const double* losses, const int32_t* labels, int64_t rows, double* loss, cudaStream_t stream) {
  launch({1, kThreads, 0, stream}, sum_losses, losses, labels, rows, loss);
}

}  // namespace ftrun::cuda
