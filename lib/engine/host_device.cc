#include "engine/host_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

namespace ftrun {

void HostDevice::clear(Lane, const TypedSpan& to) {
  std::memset(to.data, 0, static_cast<size_t>(to.bytes()));
}

void HostDevice::write_f64(Lane, double* to, std::span<const double> numbers) {
  std::copy(numbers.begin(), numbers.end(), to);
}

void HostDevice::load(Lane, std::span<const void* const> from, std::span<const TypedSpan> to) {
  for (size_t i = 0; i < to.size(); ++i)
    std::memcpy(to[i].data, from[i], static_cast<size_t>(to[i].bytes()));
}

void HostDevice::run_ops(const LayerGraph& graph, std::span<const Op> ops,
                         std::span<void* const> storage, KernelContext context) {
  context.scalars = scalars_;
  for (const Op& op : ops) run_op(graph, op, storage, context);
}

void HostDevice::copy(Lane, const TypedSpan& from, const TypedSpan& to) {
  if (from.dtype == to.dtype)
    std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
  else
    convert(from.data, from.dtype, to.data, to.dtype, to.count);
}

void HostDevice::add(Lane, const TypedSpan& from, const TypedSpan& to) {
  add_into(to.data, to.dtype, from.data, from.dtype, from.count);
}

void HostDevice::sums_of_squares(Lane, std::span<const TypedSpan> from,
                                 std::span<double* const> to) {
  for (size_t i = 0; i < from.size(); ++i)
    *to[i] = sum_of_squares(from[i].data, from[i].dtype, from[i].count);
}

void HostDevice::update(Lane, const FlatUpdate& update, Tier, const OptimizerConfig& optimizer) {
  optimizer_update(update, optimizer, *scalars_);
}

void HostDevice::compute_scales(Lane, const FlatUpdate& update, Tier,
                                const OptimizerConfig& optimizer) {
  ftrun::compute_scales(update, optimizer, *scalars_);
}

std::array<const double*, 2> HostDevice::read_f64(Lane, const TypedSpan& a, const TypedSpan& b) {
  return {reinterpret_cast<const double*>(a.data), reinterpret_cast<const double*>(b.data)};
}

std::vector<int64_t> HostDevice::read_i32(Lane, const TypedSpan& numbers) {
  const auto* begin = reinterpret_cast<const int32_t*>(numbers.data);
  return {begin, begin + numbers.count};
}

bool HostDevice::is_finite(Lane, const TypedSpan& numbers) {
  // The sum of squares of F64 numbers may overflow.
  if (numbers.dtype == DType::kF64)
    return std::ranges::all_of(std::span(reinterpret_cast<const double*>(numbers.data),
                                         static_cast<size_t>(numbers.count)),
                               [](double number) { return std::isfinite(number); });
  return std::isfinite(sum_of_squares(numbers.data, numbers.dtype, numbers.count));
}

}  // namespace ftrun
