#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"

namespace ftrun::cuda {

namespace {

constexpr int kUpdateThreads = 256;
constexpr int kUpdateWarps = kUpdateThreads / 32;
constexpr int64_t kMostBlocks = 2048;

// One warp a group of blocks, 8 lanes a quarter of it, added up as norm_blocks.h says: the CPU's bits.
template <class G>
__global__ void group_squares(const G* g, int64_t count, double* sums) {
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kUpdateWarps + threadIdx.x / 32;
  const int64_t first = group * kNormGroup;
  if (first >= count) return;
  constexpr int64_t kQuarter = kNormGroup / kNormQuarters;
  const int lane = threadIdx.x % 32;
  const int64_t begin = first + lane / kNormSums * kQuarter + lane % kNormSums;
  double quarter = 0.0;
  for (int64_t at = 0; at < kQuarter; at += kNormBlock) {
    double sum = 0.0;
#pragma unroll 8
    for (int64_t i = at; i < at + kNormBlock; i += kNormSums) {
      const double v = begin + i < count ? static_cast<double>(to_float(g[begin + i])) : 0.0;
      sum += v * v;
    }
#pragma unroll
    for (int width = kNormSums / 2; width > 0; width /= 2)
      sum += __shfl_down_sync(0xffffffffU, sum, width);
    quarter += sum;
  }
  // Now right in the first lane of each quarter, and these are all that is read.
  quarter += __shfl_down_sync(0xffffffffU, quarter, 2 * kNormSums);
  quarter += __shfl_down_sync(0xffffffffU, quarter, kNormSums);
  if (lane == 0) sums[group] = quarter;
}

// One block: each thread adds its groups' sums in order, then the threads' sums in a tree.
constexpr int kTotalThreads = 1024;
__global__ void total_squares(const double* sums, int64_t groups, bool accumulate, double* total) {
  __shared__ double parts[kTotalThreads];
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < groups; i += kTotalThreads) sum += sums[i];
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int width = kTotalThreads / 2; width > 0; width /= 2) {
    if (static_cast<int>(threadIdx.x) < width) parts[threadIdx.x] += parts[threadIdx.x + width];
    __syncthreads();
  }
  if (threadIdx.x == 0) *total = (accumulate ? *total : 0.0) + parts[0];
}

/// Coefficients of one Adam step, ready to multiply (as on the CPU).
struct AdamStep {
  float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size, inverse_sqrt_correction2, epsilon, keep, l2;
};

__device__ inline AdamStep adam_step(const AdamOptions& options, const StepScalars& s) {
  return {s.gradient_scale,
          static_cast<float>(s.beta1),
          static_cast<float>(1.0 - s.beta1),
          static_cast<float>(s.beta2),
          static_cast<float>(1.0 - s.beta2),
          static_cast<float>(static_cast<double>(s.learning_rate) / static_cast<double>(s.bias_correction1)),
          static_cast<float>(1.0 / sqrt(static_cast<double>(s.bias_correction2))),
          options.epsilon,
          options.decoupled ? static_cast<float>(1.0 - static_cast<double>(s.learning_rate) *
                                                           static_cast<double>(options.weight_decay))
                            : 1.0F,
          options.decoupled ? 0.0F : options.weight_decay};
}

/// Calls `body(i)` for every V-th element.
template <int V, class Body>
__device__ void for_elements(int64_t count, Body body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * V;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < count; i += step) body(i);
}

template <class G, int V>
__global__ void adam_elements(float* p, const G* g, float* m, float* v, Bf16* copy, int64_t count,
                              const int32_t* finite, const StepScalars* scalars, AdamOptions options) {
  __shared__ AdamStep shared;
  if (finite != nullptr && *finite == 0) return;
  if (threadIdx.x == 0) shared = adam_step(options, *scalars);
  __syncthreads();
  const AdamStep step = shared;
  for_elements<V>(count, [&](int64_t i) {
    Floats<V> param = load<V>(p + i), mean = load<V>(m + i), square = load<V>(v + i);
    const Floats<V> gradient = load<V>(g + i);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float grad = gradient[k] * step.gradient_scale + param[k] * step.l2;
      mean[k] = mean[k] * step.beta1 + grad * step.one_minus_beta1;
      square[k] = square[k] * step.beta2 + grad * grad * step.one_minus_beta2;
      const float denominator = sqrtf(square[k]) * step.inverse_sqrt_correction2 + step.epsilon;
      param[k] = param[k] * step.keep - mean[k] * step.step_size / denominator;
    }
    store(m + i, mean);
    store(v + i, square);
    store(p + i, param);
    if (copy != nullptr) store(copy + i, param);
  });
}

template <class G, int V>
__global__ void sgd_elements(float* p, const G* g, float* buffer, Bf16* copy, int64_t count, const int32_t* finite,
                             const StepScalars* scalars, SgdOptions options) {
  if (finite != nullptr && *finite == 0) return;
  const float scale = scalars->gradient_scale, rate = scalars->learning_rate;
  for_elements<V>(count, [&](int64_t i) {
    Floats<V> param = load<V>(p + i), grad = load<V>(g + i);
#pragma unroll
    for (int k = 0; k < V; ++k) grad[k] = grad[k] * scale + param[k] * options.weight_decay;
    if (buffer != nullptr) {
      Floats<V> kept = grad;
      if (!options.first_step) {
        const Floats<V> old = load<V>(buffer + i);
#pragma unroll
        for (int k = 0; k < V; ++k) kept[k] = old[k] * options.momentum + grad[k] * (1.0F - options.dampening);
      }
      store(buffer + i, kept);
#pragma unroll
      for (int k = 0; k < V; ++k) grad[k] = options.nesterov ? grad[k] + kept[k] * options.momentum : kept[k];
    }
#pragma unroll
    for (int k = 0; k < V; ++k) param[k] = param[k] - grad[k] * rate;
    store(p + i, param);
    if (copy != nullptr) store(copy + i, param);
  });
}

/// Calls `body(type of a gradient, elements at a time)`.
template <class Body>
void with_gradient(DType dtype, const Update& u, Body body) {
  const bool fit = vectors_fit<float>(u.count, u.parameters, u.gradients, u.state1, u.state2, u.bf16_copy);
  with_type(dtype, [&](auto type) {
    if (fit)
      body(type, std::integral_constant<int, 4>{});
    else
      body(type, std::integral_constant<int, 1>{});
  });
}

Launch update_launch(int64_t items, cudaStream_t stream) {
  const int64_t wanted = divide_up(items, kUpdateThreads);
  return {blocks(wanted < kMostBlocks ? wanted : kMostBlocks), kUpdateThreads, 0, stream};
}

}  // namespace

void sum_of_squares(DType dtype, const void* g, int64_t count, bool accumulate, double* sum, double* group_sums,
                    cudaStream_t stream) {
  const int64_t groups = divide_up(count, kNormGroup);
  with_type(dtype, [&](auto type) {
    using G = decltype(type);
    launch({blocks(divide_up(groups, kUpdateWarps)), kUpdateThreads, 0, stream}, group_squares<G>, static_cast<const G*>(g),
           count, group_sums);
  });
  launch({1, kTotalThreads, 0, stream}, total_squares, static_cast<const double*>(group_sums), groups,
         accumulate, sum);
}

void adam(DType gradient_dtype, const Update& u, const AdamOptions& options, cudaStream_t stream) {
  with_gradient(gradient_dtype, u, [&](auto type, auto v) {
    using G = decltype(type);
    constexpr int V = decltype(v)::value;
    launch(update_launch(u.count / V, stream), adam_elements<G, V>, u.parameters, static_cast<const G*>(u.gradients),
           u.state1, u.state2, static_cast<Bf16*>(u.bf16_copy), u.count, u.finite, u.scalars, options);
  });
}

void sgd(DType gradient_dtype, const Update& u, const SgdOptions& options, cudaStream_t stream) {
  with_gradient(gradient_dtype, u, [&](auto type, auto v) {
    using G = decltype(type);
    constexpr int V = decltype(v)::value;
    launch(update_launch(u.count / V, stream), sgd_elements<G, V>, u.parameters, static_cast<const G*>(u.gradients),
           u.state1, static_cast<Bf16*>(u.bf16_copy), u.count, u.finite, u.scalars, options);
  });
}

}  // namespace ftrun::cuda
