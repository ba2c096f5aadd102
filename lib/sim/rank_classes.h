#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/description.h"
#include "partition/units.h"
#include "program/state_options.h"
#include "sim/world.h"

namespace ftrun {

/// RankClasses groups ranks whose programs are equal except for positions: they have the same
/// instructions on the same lanes with the same waits, and ranges of the same size in the same
/// buffers, but the offsets of the ranges and the members of the groups may differ. A rank's class
/// depends on its pipeline stage and its part of the state: the size of its part of each unit,
/// where this part is cut for weight decay and into intervals, and which sums of squares it adds to
/// the gradient norm. So there are only a few classes, however many ranks there are.
struct RankClasses {
  /// The class of each rank, by rank.
  std::vector<int32_t> of_rank;
  /// The lowest rank of each class.
  std::vector<int> lowest_ranks;

  int ranks() const { return static_cast<int>(of_rank.size()); }
  int count() const { return static_cast<int>(lowest_ranks.size()); }
  int32_t class_of(int rank) const { return of_rank[static_cast<size_t>(rank)]; }
};

/// Finds the classes of all ranks by arithmetic only: no program is built. The model, the
/// partition, and the places and the stage in `state` may be those of any rank.
RankClasses find_rank_classes(const ModelDescription& model, const Partition& partition,
                              const StateOptions& state);

/// Makes the world of all ranks: `programs[c]` is the program of a rank of class c.
World world_of(const RankClasses& classes, std::span<const Program* const> programs,
               const StateOptions& state);

}  // namespace ftrun
