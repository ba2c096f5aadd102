#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/description.h"
#include "partition/units.h"
#include "program/state_options.h"
#include "sim/world.h"

namespace ftrun {

/// Ranks whose programs are equal up to their place: the same instructions on the same lanes
/// with the same waits, over ranges of the same buffers that are as long and begin elsewhere,
/// in other groups. Its stage of the pipeline and what it has of the state decide it: how long
/// its own part of each unit is, where that is cut for weight decay and into intervals, and
/// which sums of squares it adds to the gradient norm. So there are a handful of classes,
/// whatever the number of ranks.
struct RankClasses {
  /// The class of each rank, by rank.
  std::vector<int32_t> of_rank;
  /// The lowest rank of each class.
  std::vector<int> first;

  int ranks() const { return static_cast<int>(of_rank.size()); }
  int count() const { return static_cast<int>(first.size()); }
  int32_t class_of(int rank) const { return of_rank[static_cast<size_t>(rank)]; }
};

/// The classes of all ranks of these options, found by arithmetic alone: no program is built. Model
/// and partition are those of any rank, as the place and the stage in `state` may be.
RankClasses rank_classes(const ModelDescription& model, const Partition& partition,
                         const StateOptions& state);

/// All ranks: `programs[c]` is what a rank of class c runs.
World world_of(const RankClasses& classes, std::span<const Program* const> programs,
               const StateOptions& state);

}  // namespace ftrun
