#pragma once

#include <functional>
#include <vector>

#include "cluster/rank_mesh.h"
#include "program/state_options.h"

namespace ftrun {

/// Grouping is a way to group the ranks of a mesh, and names the member of StateGroups for it.
struct Grouping {
  std::function<GroupId&(StateGroups&)> which;
  /// Returns the group that a rank belongs to; the group is empty where the rank has none.
  std::function<RankGroup(int)> of_rank;
  /// The group opens its own communicator even if another group has the same ranks.
  bool apart = false;
};

/// Lists the groupings of a pipeline's stages: the first and the last stage where both hold a copy
/// of one matrix, and each pair of stages that send to each other. `mesh` is borrowed.
std::vector<Grouping> stage_groupings(const RankMesh& mesh, const StateOptions& state);

}  // namespace ftrun
