#include "partition/flat_layout.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/round_up.h"

namespace ftrun {
namespace {

void check_range(const Unit& unit, int64_t begin, int64_t end) {
  require(0 <= begin && begin <= end && end <= unit.padded_numel, "the range lies inside the unit");
}

/// Returns the first slice that ends past `position` (an element of the unit).
auto first_ending_after(const std::vector<TensorSlice>& slices, int64_t position) {
  return std::partition_point(slices.begin(), slices.end(), [&](const TensorSlice& slice) {
    return slice.position_in_unit + slice.extent <= position;
  });
}

}  // namespace

FlatLayout make_flat_layout(const Partition& partition, FlatOrder order) {
  std::vector<int64_t> elements;
  for (const Unit& unit : partition.units) elements.push_back(unit.padded_numel);
  return make_flat_layout(elements, order);
}

FlatLayout make_flat_layout(std::span<const int64_t> elements, FlatOrder order) {
  FlatLayout layout;
  layout.offset.resize(elements.size());
  layout.order.resize(elements.size());
  std::iota(layout.order.begin(), layout.order.end(), 0);
  if (order == FlatOrder::kBackward) std::reverse(layout.order.begin(), layout.order.end());
  for (UnitId id : layout.order) {
    layout.offset[static_cast<size_t>(id)] = layout.total_elements;
    layout.total_elements += elements[static_cast<size_t>(id)];
  }
  return layout;
}

int64_t shard_size(const Unit& unit, int count) {
  require(count > 0, "there is at least one shard");
  const int64_t blocks = unit.padded_numel / kUnitBlock;
  return divide_up(blocks, count) * kUnitBlock;
}

UnitRange shard_range(const Unit& unit, int index, int count) {
  require(0 <= index && index < count, "a shard's index is below the number of shards");
  const int64_t size = shard_size(unit, count);
  return {std::min(index * size, unit.padded_numel),
          std::min((index + 1) * size, unit.padded_numel)};
}

std::vector<TensorSlice> slices_in(const Unit& unit, int64_t begin, int64_t end) {
  check_range(unit, begin, end);
  std::vector<TensorSlice> out;
  for (auto it = first_ending_after(unit.slices, begin); it != unit.slices.end(); ++it) {
    if (it->position_in_unit >= end) break;
    const int64_t from = std::max(begin, it->position_in_unit);
    const int64_t to = std::min(end, it->position_in_unit + it->extent);
    if (from < to)
      out.push_back({it->tensor, it->offset + (from - it->position_in_unit), to - from, from});
  }
  return out;
}

bool straddles_blocks(const TensorInfo& tensor, const TensorSlice& slice) {
  if ((slice.position_in_unit - slice.offset) % kTensorBlock != 0) return true;
  int64_t inner = 1;
  for (size_t d = tensor.shape.size(); d-- > 0; inner *= tensor.shape[d])
    if (tensor.local.extent[d] != tensor.shape[d] &&
        tensor.rank_extent(d) * inner % kTensorBlock != 0)
      return true;
  return false;
}

std::vector<UpdateKindRange> update_kind_ranges(
    const Unit& unit, const std::function<UpdateKind(const TensorSlice&)>& kind_of, int64_t begin,
    int64_t end) {
  std::vector<UpdateKindRange> ranges;
  for (const TensorSlice& slice : slices_in(unit, begin, end)) {
    const UpdateKind kind = kind_of(slice);
    if (!ranges.empty() && ranges.back().kind == kind) continue;
    const bool has_own_range = kind.straddling_tensor >= 0;
    if (!ranges.empty()) ranges.back().end = std::min(ranges.back().end, slice.position_in_unit);
    ranges.push_back({ranges.empty() && !has_own_range ? begin : slice.position_in_unit,
                      has_own_range ? slice.position_in_unit + slice.extent : end, kind});
  }
  // There is only padding, so any update kind of the unit is correct.
  if (ranges.empty() && begin < end)
    ranges.push_back({begin, end, {.has_8bit_states = !unit.has_plain_states}});
  return ranges;
}

}  // namespace ftrun
