#include <algorithm>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "axes/groupings.h"
#include "axes/mesh.h"
#include "program/state_options.h"

namespace ftrun {

namespace {

/// Lists the groupings in an order that is the same on all ranks. Ranks open the communicators in
/// this order, so no two ranks wait for each other. The result refers to `mesh` and `state`, which
/// must outlive it.
std::vector<Grouping> groupings(const RankMesh& mesh, const StateOptions& state) {
  const auto is = [](GroupId StateGroups::*member) {
    return [member](StateGroups& groups) -> GroupId& { return groups.*member; };
  };
  std::vector<Grouping> all{
      {is(&StateGroups::all), [&](int rank) { return mesh.group_of(rank, kAllAxes); }},
      {is(&StateGroups::shard), [&](int rank) { return mesh.group_of(rank, kStateAxes); }},
      {is(&StateGroups::replica), [&](int rank) { return mesh.group_of(rank, kReplicaAxes); }},
      {is(&StateGroups::secondary),
       [&](int rank) {
         return mesh.group_of(rank, {mesh.neighbors(kStateAxes, state.secondary_shards)});
       }},
      {is(&StateGroups::tensor), [&](int rank) { return mesh.group_of(rank, kLayerAxes); }},
      {is(&StateGroups::tensor_copies),
       [&](int rank) {
         return mesh.group_of(rank, {mesh.neighbors(kLayerAxes, state.tensor_copies)});
       }},
      {is(&StateGroups::context), [&](int rank) { return mesh.group_of(rank, kRowAxes); }},
      {is(&StateGroups::model), [&](int rank) { return mesh.group_of(rank, kModelAxes); }}};
  const std::vector<Grouping> of_stages = stage_groupings(mesh, state);
  all.insert(all.end(), of_stages.begin(), of_stages.end());
  return all;
}

/// KnownGroupings finds out whether a grouping has the same groups as an earlier one. It compares
/// the groups of rank 0 only, because rank 0 is a member in every grouping that can equal another.
class KnownGroupings {
 public:
  bool is_new(const Grouping& grouping) {
    if (grouping.own_communicator) return true;
    return seen_.insert(grouping.of_rank(0).ranks).second;
  }

 private:
  std::set<std::vector<int>> seen_;
};

/// Adds the groups of one grouping. A rank is in at most one group of a grouping.
void add_groups(const RankMesh& mesh, const Grouping& grouping, std::vector<RankGroup>& all) {
  std::vector<char> seen(static_cast<size_t>(mesh.world_size()), 0);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    if (seen[static_cast<size_t>(rank)] != 0) continue;
    RankGroup group = grouping.of_rank(rank);
    for (const int member : group.ranks) seen[static_cast<size_t>(member)] = 1;
    if (group.size() > 1) all.push_back(std::move(group));
  }
}

}  // namespace

StateGroups state_groups(const StateOptions& state) {
  const RankMesh mesh = state_mesh(state);
  const int rank = global_rank(state);
  StateGroups groups;
  std::vector<ProgramGroup>& list = groups.list;
  for (const Grouping& grouping : groupings(mesh, state)) {
    RankGroup group = grouping.of_rank(rank);
    if (group.size() <= 1) continue;
    const auto known = grouping.own_communicator
                           ? list.end()
                           : std::find_if(list.begin(), list.end(), [&](const ProgramGroup& other) {
                               return other.ranks.ranks == group.ranks;
                             });
    grouping.group_id(groups) = static_cast<GroupId>(std::distance(list.begin(), known));
    if (known != list.end()) continue;
    const MemberIndex place{group.size(), group.index_of(rank)};
    list.push_back({std::move(group), place});
  }
  return groups;
}

std::vector<RankGroup> state_groups_of_all(const StateOptions& state) {
  const RankMesh mesh = state_mesh(state);
  KnownGroupings known;
  std::vector<RankGroup> all;
  for (const Grouping& grouping : groupings(mesh, state))
    if (known.is_new(grouping)) add_groups(mesh, grouping, all);
  return all;
}

}  // namespace ftrun
