#include <cfloat>

#include "kernels/cuda/elements.cuh"
#include "ops/cross_entropy/gpu.h"

namespace ftrun::cuda {

namespace {

constexpr int kRowThreads = 512;
constexpr int kRowWarps = kRowThreads / 32;
constexpr double kNan = __builtin_nan("");

/// MaxSum is the largest of some numbers and the sum of exp(number - largest). NaN and infinity
/// among the numbers make the sum NaN.
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
    x = join(
        x, {__shfl_xor_sync(0xffffffffU, x.max, step), __shfl_xor_sync(0xffffffffU, x.sum, step)});
  return x;
}

__device__ inline MaxSum block_join(MaxSum x) {
  // Two arrays are used, because variables in shared memory may have no initializers (a struct of
  // both has some).
  __shared__ float largest[kRowWarps], sums[kRowWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  x = warp_join(x);
  if (lane == 0) {
    largest[warp] = x.max;
    sums[warp] = x.sum;
  }
  __syncthreads();
  return warp_join(lane < kRowWarps ? MaxSum{largest[lane], sums[lane]} : MaxSum{});
}

/// LogitCap replaces logits z by softcap tanh(z / softcap); a softcap of 0 leaves them unchanged.
struct LogitCap {
  float softcap;

  __device__ float apply(float z) const {
    return softcap > 0.0F ? softcap * tanhf(z / softcap) : z;
  }
  /// Returns d capped / d logit at a capped logit.
  __device__ float slope(float capped) const {
    const float t = softcap > 0.0F ? capped / softcap : 0.0F;
    return 1.0F - t * t;
  }
};

/// Loads V logits from element i of a row of `count` on. With V > 1 a row has room for whole
/// vectors: elements after its last one are read as minus infinity, which adds nothing to a
/// softmax.
template <int V, class T>
__device__ Floats<V> load_logits(const T* row, int64_t i, int64_t count, LogitCap cap) {
  Floats<V> v = load<V>(row + i);
#pragma unroll
  for (int k = 0; k < V; ++k) v[k] = k == 0 || i + k < count ? cap.apply(v[k]) : -__builtin_inff();
  return v;
}

template <class T, int V>
__device__ MaxSum row_max_sum(const T* row, int64_t count, LogitCap cap) {
  MaxSum x;
  for (int64_t i = threadIdx.x * V; i < count; i += kRowThreads * V) {
    const Floats<V> v = load_logits<V>(row, i, count, cap);
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

/// Returns whether `label` is the first of the largest logits of a row. All threads of the block
/// call it.
template <class T>
__device__ bool is_likeliest(const T* row, int64_t label, float largest, LogitCap cap) {
  __shared__ int earlier;
  if (threadIdx.x == 0) earlier = 0;
  __syncthreads();
  if (cap.apply(to_float(row[label])) != largest) return false;
  for (int64_t i = threadIdx.x; i < label; i += kRowThreads)
    if (cap.apply(to_float(row[i])) == largest) earlier = 1;
  __syncthreads();
  return earlier == 0;
}

/// Writes the loss of row blockIdx.x in an evaluation, and whether its prediction is correct.
/// Rounding may make a loss negative, so it is at least 0; a row whose loss is not finite is not
/// counted as correct.
__device__ inline void write_evaluated(double loss, bool likeliest, double* losses,
                                       int32_t* correct) {
  losses[blockIdx.x] = loss < 0.0 ? 0.0 : loss;
  correct[blockIdx.x] = likeliest && isfinite(loss) ? 1 : 0;
}

// Computes the loss of a row and, with gradients, replaces the logits by (softmax - onehot) *
// token_loss_factor. Runs one block per row.
template <class T, int V>
__global__ void softmax_rows(T* logits, const int32_t* labels, double* losses, int32_t* correct,
                             int64_t vocabulary, int64_t row_stride, LogitCap cap,
                             const StepScalars* scalars) {
  const bool with_gradients = correct == nullptr;
  T* const row = logits + blockIdx.x * row_stride;
  const int32_t label = labels[blockIdx.x];
  if (label < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0.0;
    if (threadIdx.x == 0 && !with_gradients) correct[blockIdx.x] = 0;
    if (with_gradients)
      for (int64_t i = threadIdx.x * V; i < vocabulary; i += kRowThreads * V)
        store(row + i, Floats<V>{});
    return;
  }
  const MaxSum stats = row_max_sum<T, V>(row, vocabulary, cap);
  const bool known = label < vocabulary;
  const bool likeliest = !with_gradients && known && is_likeliest(row, label, stats.max, cap);
  if (threadIdx.x == 0) {
    const double loss = known
                            ? static_cast<double>(stats.max) + log(static_cast<double>(stats.sum)) -
                                  static_cast<double>(cap.apply(to_float(row[label])))
                            : kNan;
    if (with_gradients)
      losses[blockIdx.x] = loss;
    else
      write_evaluated(loss, likeliest, losses, correct);
  }
  if (!with_gradients) return;
  __syncthreads();  // the label's logit must be read before it is overwritten
  const float scale = scalars->token_loss_factor, factor = scale / stats.sum;
  for (int64_t i = threadIdx.x * V; i < vocabulary; i += kRowThreads * V) {
    Floats<V> v = load_logits<V>(row, i, vocabulary, cap);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const bool exists = k == 0 || i + k < vocabulary;
      const float of_label = i + k == label ? scale : 0.0F;
      v[k] = exists ? (expf(v[k] - stats.max) * factor - of_label) * cap.slope(v[k]) : 0.0F;
    }
    store(row + i, v);
  }
}

// Runs one block per row.
template <int V>
__global__ void statistics_rows(float* logits, const int32_t* labels, float* statistics,
                                float* label_logit, int64_t vocabulary, int64_t unpadded_rows,
                                int64_t first_row, LogitCap cap) {
  float* const row = logits + blockIdx.x * vocabulary;
  const int64_t label = labels[blockIdx.x];
  if (cap.softcap > 0.0F && label >= 0) {
    for (int64_t i = threadIdx.x; i < unpadded_rows; i += kRowThreads) row[i] = cap.apply(row[i]);
    __syncthreads();
  }
  const MaxSum stats =
      label < 0 ? MaxSum{0.0F, 0.0F} : row_max_sum<float, V>(row, unpadded_rows, {0.0F});
  if (threadIdx.x > 0) return;
  const int64_t own = label - first_row;
  statistics[2 * blockIdx.x] = stats.max;
  statistics[2 * blockIdx.x + 1] = stats.sum;
  label_logit[blockIdx.x] = label >= 0 && own >= 0 && own < vocabulary ? row[own] : 0.0F;
}

/// Joins the statistics of all ranks for row blockIdx.x, in the order of the ranks.
__device__ inline MaxSum join_ranks(const float* statistics, int64_t ranks) {
  const int64_t rows = gridDim.x;
  MaxSum joined;
  for (int64_t rank = 0; rank < ranks; ++rank)
    joined.max = fmaxf(joined.max, statistics[2 * (rank * rows + blockIdx.x)]);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* const found = statistics + 2 * (rank * rows + blockIdx.x);
    joined.sum += found[1] * expf(found[0] - joined.max);
  }
  return joined;
}

/// Returns whether the label's logit is the first of the largest logits of row blockIdx.x: no rank
/// has a larger one, and no rank before `rank` has an equal one.
__device__ inline bool is_largest(const float* statistics, int64_t rank, int64_t ranks,
                                  float label_logit) {
  for (int64_t other = 0; other < ranks; ++other) {
    const float largest = statistics[2 * (other * gridDim.x + blockIdx.x)];
    if (other < rank ? largest >= label_logit : largest > label_logit) return false;
  }
  return true;
}

// Computes the loss and the gradients of a row, one block per row. Gradients of 2 bytes go to the
// first half of the row: those of a strip are written after all threads have read the strip, over
// strips that were read before.
template <class T>
__global__ void split_softmax_rows(float* logits, const int32_t* labels, const float* statistics,
                                   const float* label_logit, double* losses, int32_t* correct,
                                   int64_t vocabulary, int64_t unpadded_rows, int64_t first_row,
                                   int64_t all_rows, int64_t ranks, LogitCap cap,
                                   const StepScalars* scalars) {
  const bool with_gradients = correct == nullptr;
  float* const row = logits + blockIdx.x * vocabulary;
  const int64_t label = labels[blockIdx.x], own = label - first_row;
  const bool counts = label >= 0;
  const MaxSum stats = counts ? join_ranks(statistics, ranks) : MaxSum{0.0F, 1.0F};
  const bool has_label = counts && own >= 0 && own < vocabulary;
  const bool likeliest =
      !with_gradients && has_label &&
      is_largest(statistics, first_row / vocabulary, ranks, label_logit[blockIdx.x]) &&
      is_likeliest(row, own, label_logit[blockIdx.x], LogitCap{0.0F});
  if (threadIdx.x == 0) {
    double loss = label < all_rows ? 0.0 : kNan;
    if (has_label)
      loss = static_cast<double>(stats.max) + log(static_cast<double>(stats.sum)) -
             static_cast<double>(label_logit[blockIdx.x]);
    if (with_gradients)
      losses[blockIdx.x] = loss;
    else
      write_evaluated(loss, likeliest, losses, correct);
  }
  if (!with_gradients) return;
  const float scale = counts ? scalars->token_loss_factor : 0.0F, factor = scale / stats.sum;
  T* const gradient = reinterpret_cast<T*>(row);
  for (int64_t first = 0; first < vocabulary; first += kRowThreads) {
    const int64_t i = first + threadIdx.x;
    float g = 0.0F;
    if (counts && i < unpadded_rows) {
      const float of_label = i == own ? scale : 0.0F;
      g = (expf(row[i] - stats.max) * factor - of_label) * cap.slope(row[i]);
    }
    if constexpr (sizeof(T) < sizeof(float)) __syncthreads();
    if (i < vocabulary) gradient[i] = from_float<T>(g);
  }
}

// Sums losses and counts in one block. Each thread adds its losses in order; then a tree adds the
// threads' sums.
__global__ void sum_losses(const double* losses, const int32_t* labels, const int32_t* correct,
                           int64_t rows, double* loss, int64_t first_label, int64_t end_label) {
  __shared__ double sums[kRowThreads], counts[kRowThreads];
  double sum = 0.0, count = 0.0;
  for (int64_t n = threadIdx.x; n < rows; n += kRowThreads) {
    sum += losses[n];
    const bool counts =
        correct != nullptr ? correct[n] != 0 : labels[n] >= first_label && labels[n] < end_label;
    count += counts ? 1.0 : 0.0;
  }
  sums[threadIdx.x] = sum;
  counts[threadIdx.x] = count;
  __syncthreads();
  for (int width = kRowThreads / 2; width > 0; width /= 2) {
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

void softmax_loss(DType dtype, const SoftmaxLossArguments& s, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(s.row_stride, s.logits), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(s.rows), kRowThreads, 0, stream}, softmax_rows<T, V>,
             static_cast<T*>(s.logits), s.labels, s.losses, s.correct, s.vocabulary, s.row_stride,
             LogitCap{s.softcap}, s.scalars);
    });
  });
}

void add_losses(const AddLossesArguments& a, cudaStream_t stream) {
  launch({1, kRowThreads, 0, stream}, sum_losses, a.losses, a.labels, a.correct, a.rows, a.loss,
         a.first_label, a.end_label);
}

void vocabulary_statistics(const VocabularyChunkArguments& v, float* statistics,
                           cudaStream_t stream) {
  with_vectors<float>(vectors_fit<float>(v.vocabulary, v.logits), [&](auto vectors) {
    constexpr int V = decltype(vectors)::value;
    launch({blocks(v.rows), kRowThreads, 0, stream}, statistics_rows<V>, v.logits, v.labels,
           statistics, v.label_logit, v.vocabulary, v.unpadded_rows, v.first_row,
           LogitCap{v.softcap});
  });
}

void vocabulary_loss(DType dtype, const VocabularyLossArguments& l, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    launch({blocks(l.chunk.rows), kRowThreads, 0, stream}, split_softmax_rows<T>, l.chunk.logits,
           l.chunk.labels, l.statistics, l.chunk.label_logit, l.losses, l.correct,
           l.chunk.vocabulary, l.chunk.unpadded_rows, l.chunk.first_row, l.chunk.all_rows, l.ranks,
           LogitCap{l.chunk.softcap}, l.scalars);
  });
}

}  // namespace ftrun::cuda
