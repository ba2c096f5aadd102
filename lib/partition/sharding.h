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

/// Sharding cuts the units of a partition into shards: rank i of n holds elements [i, i+1) x the
/// shard size of a unit that is cut. A whole copy of the unit has n shards, which may reach past
/// the unit's end. Every rank holds the whole of a unit that is not cut.
class Sharding {
 public:
  /// Cuts each unit over the ranks that share it; `place_of` returns their number and this rank's
  /// index among them. A unit that a single rank holds is not cut. Small units are cut only with
  /// `cut_small`, and only if every rank gets at least one block: cut finer, a unit would be mostly
  /// padding (16 MB for a norm at 1,024 ranks), while a whole copy costs only a few kilobytes on
  /// each rank.
  Sharding(const Partition& partition, const std::function<GroupPlace(const Unit&)>& place_of,
           bool cut_small);
  /// Cuts all units over the same ranks.
  Sharding(const Partition& partition, GroupPlace place, bool cut_small);
  /// Cuts nothing.
  explicit Sharding(const Partition& partition);

  /// Returns whether the unit is cut into shards; if not, every rank holds all of it.
  bool is_cut(UnitId unit) const { return units_[static_cast<size_t>(unit)].is_cut; }
  /// Returns how many elements of the unit a rank holds: its shard, or all of it.
  int64_t held_elements(UnitId unit) const { return units_[static_cast<size_t>(unit)].held; }
  /// Returns the number of elements of a whole copy of the unit.
  int64_t whole(UnitId unit) const { return units_[static_cast<size_t>(unit)].whole; }
  /// Returns the element of the unit where this rank's part begins.
  int64_t begin(UnitId unit) const { return units_[static_cast<size_t>(unit)].begin; }
  /// Returns the unit's elements that this rank holds, without those past the unit's end.
  UnitRange own(UnitId unit) const { return units_[static_cast<size_t>(unit)].own; }

 private:
  struct UnitShare {
    bool is_cut = false;
    int64_t held = 0;
    int64_t whole = 0;
    int64_t begin = 0;
    UnitRange own;
  };
  std::vector<UnitShare> units_;
};

}  // namespace ftrun
