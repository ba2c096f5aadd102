#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/rounding_noise.h"
#include "optimizers/code_map.h"
#include "optimizers/optimizer_config.h"

namespace ftrun::cuda {

namespace {

constexpr int kUpdateThreads = 256;
constexpr int kUpdateWarps = kUpdateThreads / 32;
constexpr int64_t kMaxBlocks = 2048;

// Sums the squares of each group of blocks with one warp, each quarter of it with 8 lanes, in the
// order of gradient_norm_blocks.h. The results have the same bits as on the CPU.
template <class G>
__global__ void group_squares(const G* g, int64_t count, double* sums) {
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kUpdateWarps + threadIdx.x / 32;
  const int64_t first = group * kGradientNormGroup;
  if (first >= count) return;
  constexpr int64_t kQuarter = kGradientNormGroup / kGradientNormQuarters;
  const int lane = threadIdx.x % 32;
  const int64_t begin = first + lane / kGradientNormSums * kQuarter + lane % kGradientNormSums;
  double quarter = 0.0;
  for (int64_t at = 0; at < kQuarter; at += kGradientNormBlock) {
    double sum = 0.0;
#pragma unroll 8
    for (int64_t i = at; i < at + kGradientNormBlock; i += kGradientNormSums) {
      const double v = begin + i < count ? static_cast<double>(to_float(g[begin + i])) : 0.0;
      sum += v * v;
    }
#pragma unroll
    for (int width = kGradientNormSums / 2; width > 0; width /= 2)
      sum += __shfl_down_sync(0xffffffffU, sum, width);
    quarter += sum;
  }
  // Only the first lane of each quarter has a correct sum now, and only these lanes are read.
  quarter += __shfl_down_sync(0xffffffffU, quarter, 2 * kGradientNormSums);
  quarter += __shfl_down_sync(0xffffffffU, quarter, kGradientNormSums);
  if (lane == 0) sums[group] = quarter;
}

// Adds the sums of all groups in one thread block: each thread adds the sums of its groups in
// order, then a tree adds the threads' sums.
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

#define FTRUN_UPDATE_FUNCTION __device__ inline
__device__ inline float square_root(float v) {
  return sqrtf(v);
}
__device__ inline double square_root(double v) {
  return sqrt(v);
}
#define FTRUN_UPDATE_RULES
#include "optimizers/list.inc"
#undef FTRUN_UPDATE_RULES
#undef FTRUN_UPDATE_FUNCTION

/// Calls `body(i)` for every V-th element.
template <int V, class Body>
__device__ void for_elements(int64_t count, Body body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * V;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < count;
       i += step)
    body(i);
}

/// Stores values of the state and returns them as they were stored. BF16 values are rounded
/// stochastically: 16 random bits are added below the BF16 mantissa, and the sum is truncated, so
/// the expectation of the result is the value. (Added bits could turn a NaN into another value, so
/// a NaN only becomes quiet.)
template <int V>
__device__ Floats<V> store_state(float* p, const Floats<V>& values, const uint32_t*) {
  store(p, values);
  return values;
}
template <int V>
__device__ Floats<V> store_state(Bf16* p, const Floats<V>& values, const uint32_t* noise) {
  Floats<V> stored;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    uint32_t bits;
    memcpy(&bits, &values.e[k], sizeof bits);
    bits = values[k] == values[k] ? bits + (noise[k] & 0xffffU) : bits | 0x400000U;
    bits &= 0xffff0000U;
    memcpy(&stored[k], &bits, sizeof bits);
  }
  store(p, stored);  // exact: the lower halves are 0
  return stored;
}

template <class T>
inline constexpr bool kRounds = sizeof(T) < sizeof(float);

/// Noise is the random numbers of V elements from `index` on among all parameters.
template <bool Draws, int V>
struct Noise {
  static_assert(kMaxOptimizerStates == 2, "this code names two states");
  uint32_t states[kMaxOptimizerStates][V], parameter[V];

  __device__ void draw(uint64_t rounding_key, int64_t index) {
    if constexpr (Draws) {
      DropoutKeys keys;
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const int64_t place = (index + k) % kElementsPerNoiseKey;
        if (k == 0 || place == 0)
          keys = rounding_keys(rounding_key, (index + k) / kElementsPerNoiseKey);
        const RoundingNoise noise = rounding_noise(keys, static_cast<uint32_t>(place));
        states[0][k] = noise.first;
        states[1][k] = noise.first >> 16;
        parameter[k] = noise.second;
      }
    }
  }
};

/// UpdatePointers holds the addresses that the kernels of an update read and write: parameters P,
/// gradients G, state M.
template <class P, class G, class M>
struct UpdatePointers {
  P* p;
  const G* g;
  M* states[kMaxOptimizerStates];
  /// Null, or of copy_dtype.
  void* copy;
  DType copy_dtype;
  int64_t count, first_element;

  template <int V>
  __device__ void store_copy(int64_t i, const Floats<V>& values) const {
    if (copy == nullptr) return;
    if (copy_dtype == DType::kBF16)
      store(static_cast<Bf16*>(copy) + i, values);
    else if (copy_dtype == DType::kF16)
      store(static_cast<Half*>(copy) + i, values);
    else
      store(static_cast<float*>(copy) + i, values);
  }
};

template <class Rule, int States, class P, class G, class M, int V>
__global__ void update_elements(UpdatePointers<P, G, M> pointers, const StepScalars* scalars,
                                OptimizerConfig config) {
  __shared__ Rule shared;
  if (threadIdx.x == 0) shared = Rule::for_step(config, *scalars);
  __syncthreads();
  const Rule rule = shared;
  const uint64_t rounding_key = scalars->rounding_key;
  for_elements<V>(pointers.count, [&](int64_t i) {
    Noise<kRounds<P> || kRounds<M>, V> noise;
    noise.draw(rounding_key, pointers.first_element + i);
    Floats<V> param = load<V>(pointers.p + i), states[kMaxOptimizerStates];
#pragma unroll
    for (int s = 0; s < States; ++s) states[s] = load<V>(pointers.states[s] + i);
    const Floats<V> gradient = load<V>(pointers.g + i);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      float kept[kMaxOptimizerStates];
#pragma unroll
      for (int s = 0; s < States; ++s) kept[s] = states[s][k];
      rule.template update<States>(param[k], gradient[k], kept);
#pragma unroll
      for (int s = 0; s < States; ++s) states[s][k] = kept[s];
    }
#pragma unroll
    for (int s = 0; s < States; ++s)
      store_state(pointers.states[s] + i, states[s], noise.states[s]);
    pointers.store_copy(i, store_state(pointers.p + i, param, noise.parameter));
  });
}

/// Calls `body` with a value of the type of parameters or states that the optimizer keeps, F32 or
/// BF16.
template <class Body>
void with_state_type(DType dtype, Body body) {
  if (dtype == DType::kBF16)
    body(Bf16{});
  else
    body(float{});
}

/// Calls `body` with the addresses of the update and the number of elements that a thread moves at
/// a time.
template <class Body>
void with_pointers(const FlatUpdate& u, Body body) {
  static_assert(kMaxOptimizerStates == 2, "this code names two states");
  const bool fit =
      vectors_fit<float>(u.count, u.parameters, u.gradients, u.states[0], u.states[1], u.copy);
  with_state_type(u.parameter_dtype, [&](auto p) {
    with_state_type(u.state_dtype, [&](auto m) {
      with_type(u.gradient_dtype, [&](auto g) {
        using P = decltype(p);
        using G = decltype(g);
        using M = decltype(m);
        const UpdatePointers<P, G, M> pointers{
            static_cast<P*>(u.parameters),
            static_cast<const G*>(u.gradients),
            {static_cast<M*>(u.states[0]), static_cast<M*>(u.states[1])},
            u.copy,
            u.copy_dtype,
            u.count,
            u.first_element};
        if (fit)
          body(pointers, std::integral_constant<int, 4>{});
        else
          body(pointers, std::integral_constant<int, 1>{});
      });
    });
  });
}

/// The maps of codes without and with negative numbers.
__constant__ const DynamicCodeMap kCodeMaps[2]{make_code_map(false), make_code_map(true)};

/// Blocks8bit holds, for each state, its scales and whether its codes also stand for negative
/// numbers. Blocks [first, last) are those of which the range has elements.
struct Blocks8bit {
  float* scales[kMaxOptimizerStates];
  float* new_scales[kMaxOptimizerStates];
  bool has_negative[kMaxOptimizerStates];
  BlockMap map;
  int64_t first, last;
};

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, step));
  return x;
}

/// Returns the code of a share in [-1, 1], the same as the CPU's
/// (kernels/cpu/flat_kernels.inc).
__device__ inline uint8_t code_of(const float* least, float share) {
  int code = 0;
#pragma unroll
  for (int step = kCodes / 2; step > 0; step /= 2)
    if (share >= least[code + step]) code += step;
  return static_cast<uint8_t>(code);
}

/// Updates states that are codes or, if kOnlyScales, only computes their new scales. A thread block
/// processes one block of codes at a time, one element per thread.
template <class Rule, class P, class G, bool kOnlyScales>
__global__ void update_codes(UpdatePointers<P, G, uint8_t> pointers, Blocks8bit blocks,
                             const StepScalars* scalars, OptimizerConfig config) {
  static_assert(kUpdateThreads == kCodeBlock && kUpdateThreads == kCodes);
  constexpr int kStates = Rule::kMaxStates;
  __shared__ Rule shared;
  __shared__ float values[kStates][kCodes], least[kStates][kCodes];
  __shared__ float warp_largest[kStates][kUpdateWarps];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) shared = Rule::for_step(config, *scalars);
#pragma unroll
  for (int s = 0; s < kStates; ++s) {
    const DynamicCodeMap& map = kCodeMaps[blocks.has_negative[s] ? 1 : 0];
    values[s][thread] = map.values[thread];
    least[s][thread] = map.smallest_shares[thread];
  }
  __syncthreads();
  const Rule rule = shared;
  const uint64_t rounding_key = scalars->rounding_key;
  for (int64_t block = blocks.first + blockIdx.x; block < blocks.last; block += gridDim.x) {
    const int64_t i = range_element(blocks.map, block * kCodeBlock, pointers.count) + thread;
    const bool inside = i < range_element(blocks.map, (block + 1) * kCodeBlock, pointers.count);
    float kept[kStates] = {};
    if (inside) {
      Noise<kRounds<P>, 1> noise;
      noise.draw(rounding_key, pointers.first_element + i);
      Floats<1> param = load<1>(pointers.p + i);
#pragma unroll
      for (int s = 0; s < kStates; ++s)
        kept[s] = values[s][pointers.states[s][i]] * blocks.scales[s][block];
      rule.template update<kStates>(param[0], to_float(pointers.g[i]), kept);
      if constexpr (!kOnlyScales)
        pointers.store_copy(i, store_state(pointers.p + i, param, noise.parameter));
    }
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      const float largest = warp_max(fabsf(kept[s]));
      if (thread % 32 == 0) warp_largest[s][thread / 32] = largest;
    }
    __syncthreads();  // now all threads have read the old scales
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      float scale = 0.0F;
#pragma unroll
      for (int warp = 0; warp < kUpdateWarps; ++warp) scale = fmaxf(scale, warp_largest[s][warp]);
      float* const given = blocks.new_scales[s];
      if constexpr (kOnlyScales) {
        if (thread == 0) given[block] = fmaxf(given[block], scale);
      } else {
        if (given != nullptr) scale = given[block];
        if (inside)
          pointers.states[s][i] = scale > 0.0F ? code_of(least[s], kept[s] / scale) : uint8_t{0};
        if (thread == 0 && given == nullptr) blocks.scales[s][block] = scale;
      }
    }
    __syncthreads();
  }
}

Launch update_launch(int64_t items, cudaStream_t stream) {
  const int64_t wanted = divide_up(items, kUpdateThreads);
  return {blocks(wanted < kMaxBlocks ? wanted : kMaxBlocks), kUpdateThreads, 0, stream};
}

template <class Rule, int States>
void update_by(const FlatUpdate& u, const OptimizerConfig& config, const StepScalars* scalars,
               cudaStream_t stream) {
  with_pointers(u, [&]<class P, class G, class M>(const UpdatePointers<P, G, M>& pointers, auto v) {
    constexpr int V = decltype(v)::value;
    launch(update_launch(u.count / V, stream), update_elements<Rule, States, P, G, M, V>, pointers,
           scalars, config);
  });
}

template <class Rule, bool kOnlyScales>
void update_codes_by(const FlatUpdate& u, const OptimizerConfig& config, const StepScalars* scalars,
                     cudaStream_t stream) {
  if (u.count == 0) return;
  static_assert(kMaxOptimizerStates == 2, "this code names two states");
  Blocks8bit blocks_of{{u.scales[0], u.scales[1]},
                       {u.new_scales[0], u.new_scales[1]},
                       {},
                       u.blocks,
                       tensor_element(u.blocks, 0) / kCodeBlock,
                       tensor_element(u.blocks, u.count - 1) / kCodeBlock + 1};
  for (int s = 0; s < Rule::kMaxStates; ++s) blocks_of.has_negative[s] = Rule::kSignedCodes[s];
  with_state_type(u.parameter_dtype, [&](auto p) {
    with_type(u.gradient_dtype, [&](auto g) {
      using P = decltype(p);
      using G = decltype(g);
      const UpdatePointers<P, G, uint8_t> pointers{
          static_cast<P*>(u.parameters),
          static_cast<const G*>(u.gradients),
          {static_cast<uint8_t*>(u.states[0]), static_cast<uint8_t*>(u.states[1])},
          u.copy,
          u.copy_dtype,
          u.count,
          u.first_element};
      launch(update_launch((blocks_of.last - blocks_of.first) * kUpdateThreads, stream),
             update_codes<Rule, P, G, kOnlyScales>, pointers, blocks_of, scalars, config);
    });
  });
}

/// Starts the kernel for as many states as the run keeps.
template <class Rule, int States = Rule::kMinStates>
void update_with(const FlatUpdate& u, const OptimizerConfig& config, const StepScalars* scalars,
                 cudaStream_t stream) {
  if constexpr (requires { Rule::kSignedCodes; })
    if (u.state_dtype == DType::kU8)
      return update_codes_by<Rule, false>(u, config, scalars, stream);
  const bool has_next_state =
      States < static_cast<int>(kMaxOptimizerStates) && u.states[States] != nullptr;
  if constexpr (States < Rule::kMaxStates)
    if (has_next_state) return update_with<Rule, States + 1>(u, config, scalars, stream);
  update_by<Rule, States>(u, config, scalars, stream);
}

}  // namespace

void sum_of_squares(DType dtype, const void* g, int64_t count, bool accumulate, double* sum,
                    double* group_sums, cudaStream_t stream) {
  const int64_t groups = divide_up(count, kGradientNormGroup);
  with_type(dtype, [&](auto type) {
    using G = decltype(type);
    launch({blocks(divide_up(groups, kUpdateWarps)), kUpdateThreads, 0, stream}, group_squares<G>,
           static_cast<const G*>(g), count, group_sums);
  });
  launch({1, kTotalThreads, 0, stream}, total_squares, static_cast<const double*>(group_sums),
         groups, accumulate, sum);
}

void optimizer_update(const FlatUpdate& u, const OptimizerConfig& config,
                      const StepScalars* scalars, cudaStream_t stream) {
  switch (config.type) {
#define FTRUN_OPTIMIZER(enumerator, name, rule) \
  case OptimizerType::k##enumerator:            \
    return update_with<rule>(u, config, scalars, stream);
#include "optimizers/list.inc"
#undef FTRUN_OPTIMIZER
    default:
      bug("an optimizer is refused when its config is resolved");
  }
}

void compute_scales(const FlatUpdate& u, const OptimizerConfig& config, const StepScalars* scalars,
                    cudaStream_t stream) {
  const auto compute_by = [&]<class Rule>(Rule*) {
    if constexpr (requires { Rule::kSignedCodes; })
      update_codes_by<Rule, true>(u, config, scalars, stream);
    else
      bug("an optimizer whose states are codes");
  };
  switch (config.type) {
#define FTRUN_OPTIMIZER(enumerator, name, rule) \
  case OptimizerType::k##enumerator:            \
    return compute_by(static_cast<rule*>(nullptr));
#include "optimizers/list.inc"
#undef FTRUN_OPTIMIZER
    default:
      bug("an optimizer is refused when its config is resolved");
  }
}

}  // namespace ftrun::cuda
