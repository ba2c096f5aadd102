#include <algorithm>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "axes/group_rules.h"
#include "axes/mesh.h"
#include "program/state_options.h"

namespace ftrun {

namespace {

/// Lists the rules in an order that is the same on all ranks. Ranks open the communicators in this
/// order, so no two ranks wait for each other. The result refers to `mesh` and `state`, which must
/// outlive it.
std::vector<GroupRule> group_rules(const RankMesh& mesh, const StateOptions& state) {
  const auto is = [](GroupId GroupCollection::*member) {
    return [member](GroupCollection& groups) -> GroupId& { return groups.*member; };
  };
  std::vector<GroupRule> all{
      {is(&GroupCollection::world), [&](int rank) { return mesh.group_of(rank, kAllAxes); }},
      {is(&GroupCollection::shard), [&](int rank) { return mesh.group_of(rank, kStateAxes); }},
      {is(&GroupCollection::replica), [&](int rank) { return mesh.group_of(rank, kReplicaAxes); }},
      {is(&GroupCollection::secondary),
       [&](int rank) {
         return mesh.group_of(rank, {mesh.neighbors(kStateAxes, state.secondary_shards)});
       }},
      {is(&GroupCollection::tensor), [&](int rank) { return mesh.group_of(rank, kLayerAxes); }},
      {is(&GroupCollection::tensor_copies),
       [&](int rank) {
         return mesh.group_of(rank, {mesh.neighbors(kLayerAxes, state.tensor_copies)});
       }},
      {is(&GroupCollection::context), [&](int rank) { return mesh.group_of(rank, kTokenAxes); }},
      {is(&GroupCollection::model), [&](int rank) { return mesh.group_of(rank, kModelAxes); }}};
  const std::vector<GroupRule> of_stages = stage_group_rules(mesh, state);
  all.insert(all.end(), of_stages.begin(), of_stages.end());
  return all;
}

/// KnownRules finds out whether a rule has the same groups as an earlier one. It compares the
/// groups of rank 0 only, because rank 0 is a member in every rule that can equal another.
class KnownRules {
 public:
  bool is_new(const GroupRule& rule) {
    if (rule.own_communicator) return true;
    return seen_.insert(rule.group_of_rank(0).ranks).second;
  }

 private:
  std::set<std::vector<int>> seen_;
};

/// Adds the groups of one rule. A rank is in at most one group of a rule.
void add_groups(const RankMesh& mesh, const GroupRule& rule, std::vector<RankGroup>& all) {
  std::vector<char> seen(static_cast<size_t>(mesh.world_size()), 0);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    if (seen[static_cast<size_t>(rank)] != 0) continue;
    RankGroup group = rule.group_of_rank(rank);
    for (const int member : group.ranks) seen[static_cast<size_t>(member)] = 1;
    if (group.size() > 1) all.push_back(std::move(group));
  }
}

}  // namespace

GroupCollection make_group_collection(const StateOptions& state) {
  const RankMesh mesh = state_mesh(state);
  const int rank = global_rank(state);
  GroupCollection groups;
  std::vector<ProgramGroup>& list = groups.list;
  for (const GroupRule& rule : group_rules(mesh, state)) {
    RankGroup group = rule.group_of_rank(rank);
    if (group.size() <= 1) continue;
    const auto known = rule.own_communicator
                           ? list.end()
                           : std::find_if(list.begin(), list.end(), [&](const ProgramGroup& other) {
                               return other.members.ranks == group.ranks;
                             });
    rule.group_id(groups) = static_cast<GroupId>(std::distance(list.begin(), known));
    if (known != list.end()) continue;
    const GroupPlace place{group.size(), group.index_of(rank)};
    list.push_back({std::move(group), place});
  }
  return groups;
}

std::vector<RankGroup> groups_of_all_ranks(const StateOptions& state) {
  const RankMesh mesh = state_mesh(state);
  KnownRules known;
  std::vector<RankGroup> all;
  for (const GroupRule& rule : group_rules(mesh, state))
    if (known.is_new(rule)) add_groups(mesh, rule, all);
  return all;
}

}  // namespace ftrun
