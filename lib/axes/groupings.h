#pragma once

#include <functional>
#include <vector>

#include "cluster/rank_mesh.h"
#include "program/state_options.h"

namespace ftrun {

/// Grouping divides the ranks of a mesh into groups.
struct Grouping {
  /// Returns the member of StateGroups that holds the id of a rank's group.
  std::function<GroupId&(StateGroups&)> group_id;
  /// Returns the group that a rank belongs to; the group is empty where the rank has none.
  std::function<RankGroup(int)> of_rank;
  /// The group opens its own communicator even if another group has the same ranks.
  bool own_communicator = false;
};

/// Lists the groupings of a pipeline's stages: the first and the last stage where both hold a copy
/// of one matrix, and each pair of stages that send to each other. `mesh` is borrowed.
std::vector<Grouping> stage_groupings(const RankMesh& mesh, const StateOptions& state);

}  // namespace ftrun
