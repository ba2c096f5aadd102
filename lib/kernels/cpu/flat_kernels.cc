#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/copy_non_temporal.h"
#include "base/error.h"
#include "base/mix_bits.h"
#include "kernels/copy.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/kernels.h"
#include "kernels/update_states.h"
#include "optimizers/code_map.h"

namespace ftrun {

namespace {

constexpr int64_t kFlatGrain = 1 << 16;
/// Conversions of at least this many elements write past the caches.
constexpr int64_t kStreamedElements = 1 << 22;

double square_root(double v) {
  return std::sqrt(v);
}
#define FTRUN_UPDATE_FUNCTION
#define FTRUN_UPDATE_RULES
#include "optimizers/list.inc"
#undef FTRUN_UPDATE_RULES
#undef FTRUN_UPDATE_FUNCTION

/// Calls `body(rule)` with the rule of this step.
template <class Body>
void with_rule(const OptimizerConfig& config, const StepScalars& scalars, Body body) {
  switch (config.type) {
#define FTRUN_OPTIMIZER(enumerator, name, rule) \
  case OptimizerType::k##enumerator:            \
    return body(rule::for_step(config, scalars));
#include "optimizers/list.inc"
#undef FTRUN_OPTIMIZER
    default:
      bug("an optimizer is refused when its config is resolved");
  }
}

FlatType flat_type(DType dtype, std::string_view what) {
  switch (dtype) {
    case DType::kF32:
      return FlatType::kF32;
    case DType::kBF16:
      return FlatType::kBF16;
    case DType::kF16:
      return FlatType::kF16;
    default:
      throw Error(ExitCode::kUnsupported,
                  cat("the CPU kernels do not support ", what, " in ", dtype_name(dtype)),
                  "use fp32, bf16 or fp16");
  }
}

size_t flat_index(DType dtype, std::string_view what) {
  return static_cast<size_t>(flat_type(dtype, what));
}

/// Refuses F16 for states: its small range of exponents makes it unfit for sums of small steps.
size_t state_index(DType dtype, std::string_view what) {
  if (dtype != DType::kF32 && dtype != DType::kBF16)
    throw Error(ExitCode::kUnsupported,
                cat("the optimizers keep no ", what, " in ", dtype_name(dtype)),
                "use fp32 or bf16");
  return flat_index(dtype, what);
}

template <class T>
T* advanced(T* p, int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return p == nullptr ? nullptr : static_cast<Byte*>(p) + elements * dtype_bytes(dtype);
}

FlatUpdateRange part_of(const FlatUpdate& u, int64_t begin, int64_t end, uint64_t rounding_key) {
  static_assert(kMaxOptimizerStates == 2, "this code names two states");
  return {.parameters = advanced(u.parameters, begin, u.parameter_dtype),
          .gradients = advanced(u.gradients, begin, u.gradient_dtype),
          .states = {advanced(u.states[0], begin, u.state_dtype),
                     advanced(u.states[1], begin, u.state_dtype)},
          .copy = advanced(u.copy, begin, u.copy_dtype),
          .copy_type = flat_type(u.copy_dtype, "copies of parameters"),
          .count = end - begin,
          .first_element = u.first_element + begin,
          .rounding_key = rounding_key};
}

/// Runs a kernel of the table on the blocks of which the range has elements, in parallel.
void run_8bit_update(const FlatUpdate& u, const OptimizerConfig& config, const StepScalars& scalars,
                     const UpdateKernel (&table)[kStateTypes][kFlatTypes]) {
  if (u.count == 0) return;
  const UpdateKernel kernel = table[state_index(u.parameter_dtype, "parameters")]
                                   [flat_index(u.gradient_dtype, "gradients")];
  const int64_t first = tensor_element(u.blocks, 0) / kCodeBlock,
                last = tensor_element(u.blocks, u.count - 1) / kCodeBlock + 1;
  with_rule(config, scalars, [&](const auto& rule) {
    parallel_ranges(last - first, kFlatGrain / kCodeBlock, [&](int64_t begin, int64_t end) {
      FlatUpdateRange range = part_of(u, 0, u.count, scalars.rounding_key);
      std::copy(u.scales.begin(), u.scales.end(), range.scales);
      std::copy(u.new_scales.begin(), u.new_scales.end(), range.new_scales);
      range.blocks = u.blocks;
      range.first_block = first + begin;
      range.last_block = first + end;
      kernel(range, &rule);
    });
  });
}

}  // namespace

double sum_of_squares(const void* g, DType dtype, int64_t count) {
  // The memory is kept from call to call, so that steps do not allocate.
  thread_local std::vector<double> sums;
  const int64_t groups = (count + kGradientNormGroup - 1) / kGradientNormGroup;
  sums.resize(static_cast<size_t>(groups));
  double* const sum = sums.data();
  const auto kernel = flat_kernels().sum_of_squares[flat_index(dtype, "gradients")];
  parallel_ranges(groups, kFlatGrain / kGradientNormGroup, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = group * kGradientNormGroup;
      sum[group] = kernel(advanced(g, first, dtype), std::min(kGradientNormGroup, count - first));
    }
  });
  double total = 0.0;
  for (int64_t group = 0; group < groups; ++group) total += sum[group];
  return total;
}

void convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t count) {
  if (from == to && from_dtype == to_dtype) return;
  const auto kernel =
      flat_kernels()
          .convert[flat_index(from_dtype, "conversion")][flat_index(to_dtype, "conversion")];
  parallel_ranges(count, kFlatGrain, [&](int64_t begin, int64_t end) {
    kernel(advanced(from, begin, from_dtype), advanced(to, begin, to_dtype), end - begin,
           count >= kStreamedElements);
  });
}

void copy_streamed(std::span<const CopiedRange> ranges) {
  constexpr int64_t kPart = int64_t{1} << 20;
  std::vector<CopiedRange> parts;
  for (const CopiedRange& range : ranges)
    for (int64_t at = 0; at < range.bytes; at += kPart)
      parts.push_back({static_cast<char*>(range.to) + at, static_cast<const char*>(range.from) + at,
                       std::min(kPart, range.bytes - at)});
  parallel_tasks(static_cast<int64_t>(parts.size()), [&](int64_t task) {
    const CopiedRange& part = parts[static_cast<size_t>(task)];
    copy_non_temporal(part.to, part.from, static_cast<size_t>(part.bytes));
  });
}

void add_into(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count) {
  const auto kernel =
      flat_kernels().add_into[flat_index(to_dtype, "addition")][flat_index(from_dtype, "addition")];
  parallel_ranges(count, kFlatGrain, [&](int64_t begin, int64_t end) {
    kernel(advanced(to, begin, to_dtype), advanced(from, begin, from_dtype), end - begin);
  });
}

uint64_t rounding_key(uint64_t seed, int64_t step) {
  return splitmix64(splitmix64(seed) ^ static_cast<uint64_t>(step));
}

void optimizer_update(const FlatUpdate& update, const OptimizerConfig& config,
                      const StepScalars& scalars) {
  require(update.first_element >= 0, "the first element of an update is at least 0");
  const FlatUpdate used = with_states_of(update, config);
  const auto type = static_cast<size_t>(config.type);
  if (used.state_dtype == DType::kU8)
    return run_8bit_update(used, config, scalars, flat_kernels().update_8bit[type].by_types);
  const auto states = static_cast<size_t>(optimizer_states(config).size());
  const UpdateKernel kernel =
      flat_kernels().update[type][states].by_types[state_index(used.parameter_dtype, "parameters")]
                                                  [flat_index(used.gradient_dtype, "gradients")]
                                                  [state_index(used.state_dtype, "moments")];
  with_rule(config, scalars, [&](const auto& rule) {
    parallel_ranges(used.count, kFlatGrain, [&](int64_t begin, int64_t end) {
      kernel(part_of(used, begin, end, scalars.rounding_key), &rule);
    });
  });
}

void compute_scales(const FlatUpdate& update, const OptimizerConfig& config,
                    const StepScalars& scalars) {
  const FlatUpdate used = with_states_of(update, config);
  require(used.state_dtype == DType::kU8 && used.new_scales[0] != nullptr,
          "only states that are codes have scales to compute");
  run_8bit_update(used, config, scalars,
                  flat_kernels().update_8bit[static_cast<size_t>(config.type)].compute_scales);
}

}  // namespace ftrun
