#pragma once

#include <functional>
#include <vector>

#include "cluster/rank_mesh.h"
#include "program/state_options.h"

namespace ftrun {

/// GroupRule says how the ranks of a mesh are divided into groups for one purpose.
struct GroupRule {
  /// Returns the member of GroupCollection that holds the id of a rank's group.
  std::function<GroupId&(GroupCollection&)> group_id;
  /// Returns the group to which a rank belongs; an empty group if the rank is in none.
  std::function<RankGroup(int)> group_of_rank;
  /// Says whether the group opens its own communicator even if another group has the same ranks.
  bool own_communicator = false;
};

/// Lists the group rules of a pipeline's stages: the first and the last stage if both hold a copy
/// of one matrix, and each pair of stages that send to each other. `mesh` is borrowed.
std::vector<GroupRule> stage_group_rules(const RankMesh& mesh, const StateOptions& state);

}  // namespace ftrun
