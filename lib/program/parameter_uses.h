#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "partition/units.h"
#include "program/program.h"
#include "program/unit_placement.h"

namespace ftrun {

/// ParameterUse is one use of a unit's parameters: they are gathered for the operation lists that
/// read them. Consecutive operation lists share one use.
struct ParameterUse {
  UnitId unit = -1;
  int32_t micro_batch = -1;
  BufferId buffer = -1;
};

/// ParameterUses assigns the ranges from which operation lists read parameters, and records the
/// uses that need a gather.
class ParameterUses {
 public:
  ParameterUses(Program& program, const UnitPlacement& placement)
      : program_(program), placement_(placement) {}

  /// Assigns bytes [position, +bytes) of the unit's parameters, readable until release(), and
  /// records the use of a unit that must be gathered.
  BufferRange assign_parameter_range(const ParamLocation& location, int64_t bytes,
                                     int32_t micro_batch) {
    const StateSpec& state = placement_.spec(location.unit);
    if (!state.gathered) {
      const BufferRange stored =
          placement_.parameters(location.unit, {location.position, location.position});
      return {stored.buffer, stored.offset, bytes};
    }
    const auto [use, is_new] = joinable_uses_.try_emplace(location.unit, uses_.size());
    if (is_new) {
      const BufferRange gathered =
          add_temporary(program_, cat("gathered.", location.unit, ".", uses_.size()), Tier::kDevice,
                        Category::kBuckets, state.formats.compute,
                        placement_.sharding().padded_elements(location.unit));
      uses_.push_back({location.unit, micro_batch, gathered.buffer});
    }
    return {uses_[use->second].buffer, state.formats.compute.bytes(location.position), bytes};
  }

  /// Ends the uses of all units except `still_needed`, the units that the next operation list reads
  /// too.
  void release(const std::set<UnitId>& still_needed) {
    std::erase_if(joinable_uses_,
                  [&](const auto& use) { return !still_needed.contains(use.first); });
  }

  /// Returns the uses, in the order in which operation lists requested them.
  const std::vector<ParameterUse>& uses() const { return uses_; }

 private:
  Program& program_;
  const UnitPlacement& placement_;
  std::vector<ParameterUse> uses_;
  /// The uses that further operation lists may still join, as indices in `uses_`, by unit.
  std::map<UnitId, size_t> joinable_uses_;
};

}  // namespace ftrun
