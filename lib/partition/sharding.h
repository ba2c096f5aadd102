#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "partition/flat_layout.h"
#include "partition/units.h"

namespace ftrun {

/// GroupPlace is a rank's place in a group: its index among the members, and their number. Members
/// are ranks that communicate or that divide something among themselves (the shards of a state, the
/// parts of a tensor, the samples of a batch), or the stages of a pipeline.
struct GroupPlace {
  int count = 1;
  int index = 0;
};

/// Sharding divides the units of a partition into shards: rank i of n holds elements [i, i+1) x the
/// shard size of a sharded unit. A whole copy of the unit has n shards, which may reach past the
/// unit's end. Every rank holds all elements of a unit that is not sharded.
class Sharding {
 public:
  /// Divides each unit over the ranks that share it; `place_of` returns their number and this
  /// rank's index among them. A unit that a single rank holds is not sharded. Small units are
  /// sharded only with `shard_small_units`, and only if every rank gets at least one block: with
  /// smaller shards a unit would be mostly padding (16 MB for a norm at 1,024 ranks), while a whole
  /// copy costs only a few kilobytes on each rank.
  Sharding(const Partition& partition, const std::function<GroupPlace(const Unit&)>& place_of,
           bool shard_small_units);
  /// Divides all units over the same ranks.
  Sharding(const Partition& partition, GroupPlace place, bool shard_small_units);
  /// Makes a sharding of which no unit is sharded.
  explicit Sharding(const Partition& partition);

  /// Returns whether the unit is divided into shards; if not, every rank holds all of it.
  bool is_sharded(UnitId unit) const { return units_[static_cast<size_t>(unit)].is_sharded; }
  /// Returns how many elements of the unit a rank holds: its shard, or all of it.
  int64_t held_elements(UnitId unit) const {
    return units_[static_cast<size_t>(unit)].held_elements;
  }
  /// Returns the number of elements of a whole copy of the unit, padded to equal shards.
  int64_t padded_elements(UnitId unit) const {
    return units_[static_cast<size_t>(unit)].padded_elements;
  }
  /// Returns the element of the unit where this rank's part begins.
  int64_t begin(UnitId unit) const { return units_[static_cast<size_t>(unit)].begin; }
  /// Returns the unit's elements that this rank holds, without those past the unit's end.
  UnitRange own_range(UnitId unit) const { return units_[static_cast<size_t>(unit)].own_range; }

 private:
  struct UnitShard {
    bool is_sharded = false;
    int64_t held_elements = 0;
    int64_t padded_elements = 0;
    int64_t begin = 0;
    UnitRange own_range;
  };
  std::vector<UnitShard> units_;
};

}  // namespace ftrun
