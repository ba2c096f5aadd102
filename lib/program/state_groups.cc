#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "cluster/rank_mesh.h"
#include "program/state_options.h"

namespace ftrun {

RankMesh state_mesh(const StateOptions& state) {
  return RankMesh({.pp = state.pipeline.stages(),
                   .dp_replicate = state.replicas,
                   .dp_shard = state.dp_shard.count,
                   .cp = state.context.count,
                   .tp = state.tensor.count});
}

namespace {

/// Grouping is a way to group the ranks of a mesh, and names the member of StateGroups for it.
struct Grouping {
  std::function<GroupId&(StateGroups&)> which;
  /// Returns the group of a rank; without ranks where there is none.
  std::function<RankGroup(int)> of_rank;
  /// A group of its own though another has the same ranks.
  bool apart = false;
};

/// Stages that send to each other, the lower one first.
std::set<std::pair<int, int>> linked_stages(const PipelineLayout& pipeline) {
  std::set<std::pair<int, int>> pairs;
  for (int part = 0; part + 1 < pipeline.parts(); ++part) {
    const auto [low, high] = std::minmax({pipeline.stage_of(part), pipeline.stage_of(part + 1)});
    if (low != high) pairs.emplace(low, high);
  }
  return pairs;
}

Grouping link_grouping(const RankMesh& mesh, int from, int to) {
  const auto of_rank = [&mesh, from, to](int rank) {
    const int stage = mesh.coordinate(rank).pp;
    if (stage != from && stage != to) return RankGroup{};
    return mesh.link(mesh.moved(rank, MeshAxis::kPipeline, from),
                     mesh.moved(rank, MeshAxis::kPipeline, to), MeshAxis::kPipeline);
  };
  return {[from, to](StateGroups& groups) -> GroupId& {
            return groups.links[{from, to}];
          },
          of_rank, true};
}

/// Lists the groupings in an order that all ranks share: no rank waits for one that waits for it
/// when they are opened one by one. `mesh` and `state` are borrowed.
std::vector<Grouping> groupings(const RankMesh& mesh, const StateOptions& state) {
  using enum MeshAxis;
  const auto is = [](GroupId StateGroups::*member) {
    return [member](StateGroups& groups) -> GroupId& { return groups.*member; };
  };
  std::vector<Grouping> all{
      {is(&StateGroups::all),
       [&](int rank) {
         return mesh.group_of(rank, {kPipeline, kReplicate, kShard, kContext, kTensor});
       }},
      {is(&StateGroups::shard), [&](int rank) { return mesh.group_of(rank, kStateAxes); }},
      {is(&StateGroups::replica), [&](int rank) { return mesh.group_of(rank, {kReplicate}); }},
      {is(&StateGroups::secondary),
       [&](int rank) {
         return mesh.group_of(rank, {mesh.neighbours(kStateAxes, state.secondary_shards)});
       }},
      {is(&StateGroups::tensor), [&](int rank) { return mesh.group_of(rank, {kTensor}); }},
      {is(&StateGroups::tensor_copies),
       [&](int rank) {
         return mesh.group_of(rank, {mesh.neighbours({kTensor}, state.tensor_copies)});
       }},
      {is(&StateGroups::context), [&](int rank) { return mesh.group_of(rank, {kContext}); }},
      {is(&StateGroups::model), [&](int rank) {
         return mesh.group_of(rank, {kPipeline, kShard, kContext, kTensor});
       }}};
  if (state.ties_ends)
    all.push_back({is(&StateGroups::ends), [&](int rank) {
                     const int stage = mesh.coordinate(rank).pp;
                     const bool end = stage == 0 || stage + 1 == mesh.size(kPipeline);
                     return end ? mesh.ends_of(rank, kPipeline) : RankGroup{};
                   }});
  for (const auto& [low, high] : linked_stages(state.pipeline)) {
    all.push_back(link_grouping(mesh, low, high));
    all.push_back(link_grouping(mesh, high, low));
  }
  return all;
}

/// KnownGroupings says whether a grouping's groups are those of an earlier one, seen from rank 0,
/// which is in all that may be equal.
class KnownGroupings {
 public:
  bool is_new(const Grouping& grouping) {
    if (grouping.apart) return true;
    return seen_.insert(grouping.of_rank(0).ranks).second;
  }

 private:
  std::set<std::vector<int>> seen_;
};

/// Adds the groups of one grouping, which holds a rank at most once.
void add_groups(const RankMesh& mesh, const Grouping& grouping, std::vector<RankGroup>& all) {
  std::vector<char> seen(static_cast<size_t>(mesh.world()), 0);
  for (int rank = 0; rank < mesh.world(); ++rank) {
    if (seen[static_cast<size_t>(rank)] != 0) continue;
    RankGroup group = grouping.of_rank(rank);
    for (const int member : group.ranks) seen[static_cast<size_t>(member)] = 1;
    if (group.size() > 1) all.push_back(std::move(group));
  }
}

}  // namespace

StateGroups state_groups(const StateOptions& state) {
  const RankMesh mesh = state_mesh(state);
  const int rank = mesh.rank_at({state.pipeline_stage, state.replica, state.dp_shard.index,
                                 state.context.index, state.tensor.index});
  StateGroups groups;
  std::vector<ProgramGroup>& list = groups.list;
  for (const Grouping& grouping : groupings(mesh, state)) {
    RankGroup group = grouping.of_rank(rank);
    if (group.size() <= 1) continue;
    const auto known = grouping.apart
                           ? list.end()
                           : std::find_if(list.begin(), list.end(), [&](const ProgramGroup& other) {
                               return other.ranks.ranks == group.ranks;
                             });
    grouping.which(groups) = static_cast<GroupId>(std::distance(list.begin(), known));
    if (known != list.end()) continue;
    const ShardPlace place{group.size(), group.index_of(rank)};
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
