#pragma once

#include <functional>
#include <vector>

#include "cluster/rank_mesh.h"
#include "program/state_options.h"

namespace ftrun {

/// Grouping is a way to group the ranks of a mesh, and names the member of StateGroups for it.
struct Grouping {
  std::function<GroupId&(StateGroups&)> which;
  /// Returns the group of a rank; without ranks where there is none.
  std::function<RankGroup(int)> of_rank;
  /// Opens a communicator of its own even if another group has the same ranks.
  bool apart = false;
};

/// Lists the groupings of a pipeline's stages: its ends, where both hold copies of one matrix, and
/// the links between stages that send to each other. `mesh` is borrowed.
std::vector<Grouping> stage_groupings(const RankMesh& mesh, const StateOptions& state);

}  // namespace ftrun
