#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

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

namespace {

/// A way to group the ranks of a mesh, and which of StateGroups it is.
struct Grouping {
  GroupId StateGroups::*which;
  std::function<RankGroup(int)> of_rank;
};

std::vector<Grouping> groupings(const RankMesh& mesh, const StateOptions& state) {
  using enum MeshAxis;
  return {
      {&StateGroups::all,
       [&](int rank) {
         return mesh.group_of(rank, {kReplicate, kShard, kTensor});
       }},
      {&StateGroups::shard, [&](int rank) { return mesh.group_of(rank, {kShard}); }},
      {&StateGroups::replica, [&](int rank) { return mesh.group_of(rank, {kReplicate}); }},
      {&StateGroups::node, [&](int rank) { return mesh.neighbours_of(rank, kShard, state.node); }},
      {&StateGroups::tensor, [&](int rank) { return mesh.group_of(rank, {kTensor}); }},
      {&StateGroups::tensor_copies,
       [&](int rank) { return mesh.neighbours_of(rank, kTensor, state.tensor_copies); }},
      {&StateGroups::model, [&](int rank) {
         return mesh.group_of(rank, {kShard, kTensor});
       }}};
}

/// The groups of one way, which holds every rank once.
std::vector<RankGroup> all_groups(const RankMesh& mesh, const Grouping& grouping) {
  std::vector<RankGroup> groups;
  std::vector<char> seen(static_cast<size_t>(mesh.world()), 0);
  for (int rank = 0; rank < mesh.world(); ++rank) {
    if (seen[static_cast<size_t>(rank)] != 0) continue;
    groups.push_back(grouping.of_rank(rank));
    for (const int member : groups.back().ranks) seen[static_cast<size_t>(member)] = 1;
  }
  return groups;
}

}  // namespace

StateGroups state_groups(const StateOptions& state) {
  const RankMesh mesh = state_mesh(state);
  const int rank = mesh.rank_at({0, state.replica, state.shard.index, 0, state.tensor.index});
  StateGroups groups;
  GroupList list(groups.list, rank);
  for (const Grouping& grouping : groupings(mesh, state))
    groups.*grouping.which = list.add(grouping.of_rank(rank));
  return groups;
}

std::vector<std::vector<RankGroup>> state_groups_of_all(const StateOptions& state) {
  const RankMesh mesh = state_mesh(state);
  StateGroups of_first;
  GroupList list(of_first.list, 0);
  std::vector<std::vector<RankGroup>> all;
  for (const Grouping& grouping : groupings(mesh, state)) {
    const auto id = static_cast<size_t>(list.add(grouping.of_rank(0)) + 1);
    if (id > all.size()) all.push_back(all_groups(mesh, grouping));
  }
  return all;
}

}  // namespace ftrun
