#include <algorithm>
#include <iterator>
#include <utility>

#include "cluster/rank_mesh.h"
#include "program/state_options.h"

namespace ftrun {
namespace {

/// Puts groups into the list, each set of ranks once.
class GroupList {
 public:
  GroupList(std::vector<ProgramGroup>& list, int rank) : list_(list), rank_(rank) {}

  GroupId add(RankGroup group) {
    if (group.size() == 1) return kNoGroup;
    const auto known = std::find_if(list_.begin(), list_.end(), [&](const ProgramGroup& other) {
      return other.ranks.ranks == group.ranks;
    });
    if (known != list_.end()) return static_cast<GroupId>(std::distance(list_.begin(), known));
    const ShardPlace place{group.size(), group.index_of(rank_)};
    list_.push_back({std::move(group), place});
    return static_cast<GroupId>(list_.size()) - 1;
  }

 private:
  std::vector<ProgramGroup>& list_;
  int rank_;
};

}  // namespace

RankMesh state_mesh(const StateOptions& state) {
  return RankMesh({.pp = 1,
                   .dp_replicate = state.replicas,
                   .dp_shard = state.shard.count,
                   .cp = 1,
                   .tp = state.tensor.count});
}

StateGroups state_groups(const StateOptions& state) {
  const RankMesh mesh = state_mesh(state);
  const int rank =
      mesh.rank_at({0, state.replica, state.shard.index, 0, state.tensor.index});
  StateGroups groups;
  GroupList list(groups.list, rank);
  const auto along = [&](std::initializer_list<MeshAxis> axes) {
    return list.add(mesh.group_of(rank, axes));
  };
  groups.all = along({MeshAxis::kReplicate, MeshAxis::kShard, MeshAxis::kTensor});
  groups.shard = along({MeshAxis::kShard});
  groups.replica = along({MeshAxis::kReplicate});
  groups.node = list.add(mesh.neighbours_of(rank, MeshAxis::kShard, state.node));
  groups.tensor = along({MeshAxis::kTensor});
  groups.tensor_copies = list.add(mesh.neighbours_of(rank, MeshAxis::kTensor, state.tensor_copies));
  groups.model = along({MeshAxis::kShard, MeshAxis::kTensor});
  return groups;
}

}  // namespace ftrun
