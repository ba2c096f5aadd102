#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "partition/layout.h"
#include "partition/units.h"

namespace ftrun {

/// A rank's place among those that share one copy of a state.
struct ShardPlace {
  int count = 1;
  int index = 0;
};

/// Sharding cuts each unit of a partition over the ranks that share it out: rank i of n holds
/// elements [i, i+1) x stride of a unit that is cut. A whole copy of it has n strides, which may
/// reach past the unit's end; a unit that is not cut is held whole by everyone.
class Sharding {
 public:
  /// `place_of` says this rank's place among those that share a unit out. A unit of one rank is not
  /// cut. Small units are cut only with `cut_small`, and only if every rank gets at least one
  /// block: cut finer, a unit would be mostly padding (16 MB for a norm at 1,024 ranks); whole, it
  /// costs a few kilobytes a rank.
  Sharding(const Partition& partition, const std::function<ShardPlace(const Unit&)>& place_of,
           bool cut_small);
  /// Cuts all units over the same ranks.
  Sharding(const Partition& partition, ShardPlace place, bool cut_small);
  /// Cuts nothing.
  explicit Sharding(const Partition& partition);

  bool cut(UnitId unit) const { return units_[static_cast<size_t>(unit)].cut; }
  /// Elements that a rank holds of the unit: its stride, or all of it.
  int64_t held(UnitId unit) const { return units_[static_cast<size_t>(unit)].held; }
  /// Elements of a whole copy.
  int64_t whole(UnitId unit) const { return units_[static_cast<size_t>(unit)].whole; }
  /// Element of the unit where what this rank holds begins.
  int64_t begin(UnitId unit) const { return units_[static_cast<size_t>(unit)].begin; }
  /// The unit's elements that this rank holds, without what reaches past the unit.
  ShardRange own(UnitId unit) const { return units_[static_cast<size_t>(unit)].own; }

 private:
  struct Cut {
    bool cut = false;
    int64_t held = 0;
    int64_t whole = 0;
    int64_t begin = 0;
    ShardRange own;
  };
  std::vector<Cut> units_;
};

}  // namespace ftrun
