#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "partition/units.h"

namespace ftrun {

/// FlatOrder is the order of units in a flat buffer. Parameters lie in the order in which the
/// forward pass reads them, gradients in the order in which the backward pass completes them. (The
/// backward pass completes the gradient of a unit that two layers read at the first of these
/// layers, which it reaches last.)
enum class FlatOrder : uint8_t { kForward, kBackward };

/// FlatLayout is the order and the offsets of all units of a partition in one flat buffer.
struct FlatLayout {
  /// Element offset by unit id; multiples of kUnitBlock.
  std::vector<int64_t> offset;
  /// Unit ids by offset.
  std::vector<UnitId> order;
  /// The number of elements of the buffer.
  int64_t total_elements = 0;

  /// Returns the element offset of a unit.
  int64_t at(UnitId id) const { return offset[static_cast<size_t>(id)]; }
};

FlatLayout make_flat_layout(const Partition& partition, FlatOrder order);
/// Lays out units of `elements[unit]` elements instead of their padded size.
FlatLayout make_flat_layout(std::span<const int64_t> elements, FlatOrder order);

/// UnitRange is a range of elements [begin, end) of a unit.
struct UnitRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const UnitRange&) const = default;
};

/// Returns the number of elements of each of `count` equal shards of a unit: a multiple of
/// kUnitBlock, such that count * shard_size(...) >= unit.padded_numel. A collective over equal
/// shards moves this many elements for each rank; the last shards may reach past the unit.
int64_t shard_size(const Unit& unit, int count);

/// Returns the part of the unit that shard `index` of `count` holds: [index, index+1) shard sizes,
/// cut at the unit's end (so late shards of a small unit are empty).
UnitRange shard_range(const Unit& unit, int index, int count);

/// Returns the slices of tensors in elements [begin, end) of a unit, cut to this range and ordered
/// by position. Padding belongs to no slice.
std::vector<TensorSlice> slices_in(const Unit& unit, int64_t begin, int64_t end);

/// Returns whether some block of the whole tensor is not a block of the unit, because each
/// tensor-parallel rank has only a part of the block, or because the slice begins within it.
bool straddles_blocks(const TensorInfo& tensor, const TensorSlice& slice);

/// UpdateKind describes how an update treats a tensor: with or without weight decay, and whether
/// its optimizer states are 8-bit codes or plain numbers.
struct UpdateKind {
  bool decay = false;
  bool has_8bit_states = false;
  /// The tensor, if its states are codes and it straddles blocks: such a tensor is updated
  /// separately.
  TensorId straddling_tensor = -1;
  bool operator==(const UpdateKind&) const = default;
};

/// UpdateKindRange is a range of elements [begin, end) of a unit whose tensors all have one update
/// kind.
struct UpdateKindRange {
  int64_t begin = 0;
  int64_t end = 0;
  UpdateKind kind;
  bool operator==(const UpdateKindRange&) const = default;
};

/// Cuts [begin, end) of a unit into as few ranges as possible that each have one update kind.
/// Together they cover [begin, end), except padding next to a tensor that straddles blocks; other
/// padding belongs to a neighboring range. Calls `kind_of` once for each slice.
std::vector<UpdateKindRange> update_kind_ranges(
    const Unit& unit, const std::function<UpdateKind(const TensorSlice&)>& kind_of, int64_t begin,
    int64_t end);

}  // namespace ftrun
