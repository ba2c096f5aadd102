#include "sim/folded_world.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "sim/sequential_ids.h"

namespace ftrun {
namespace {

using CellNumbers = SequentialIds<std::map<std::vector<int32_t>, int32_t>>;

/// WorldFolder refines cells of ranks and groups that are alike until they no longer change, and
/// makes a world in which one rank represents each cell.
class WorldFolder {
 public:
  WorldFolder(const World& world, std::span<const int32_t> schedule_of)
      : world_(world), members_(world.groups.size()) {
    CellNumbers cells;
    for (const World::Rank& rank : world.ranks)
      rank_cell_.push_back(cells.id_of({schedule_of[static_cast<size_t>(rank.program)]}));
    for (size_t g = 0; g < world.groups.size(); ++g)
      for (const int32_t rank : world.groups[g].members) add_member(static_cast<int32_t>(g), rank);
    rank_cells_ = cells.count();
  }

  std::optional<World> run() {
    for (size_t before = 0; before != rank_cells_;) {
      before = rank_cells_;
      refine();
    }
    if (!cells_have_one_entry()) return std::nullopt;
    return build();
  }

 private:
  /// Member is a rank of a group, with the index of the group in the rank's list of groups
  /// (World::Rank::groups).
  struct Member {
    int32_t rank;
    int32_t entry;
  };

  void add_member(int32_t group, int32_t rank) {
    std::vector<Member>& members = members_[static_cast<size_t>(group)];
    const auto& entries = world_.ranks[static_cast<size_t>(rank)].groups;
    const size_t before = members.size();
    for (size_t e = 0; e < entries.size(); ++e)
      if (entries[e] == group) members.push_back({rank, static_cast<int32_t>(e)});
    // A rank whose program does not have the group never enters its collectives.
    if (members.size() == before) members.push_back({rank, World::kNotMember});
  }

  int32_t cell_of(Member member) const { return rank_cell_[static_cast<size_t>(member.rank)]; }

  /// Returns the distinct pairs (cell of the rank, index of the group) of a group's members,
  /// sorted.
  std::vector<std::pair<int32_t, int32_t>> member_cells(size_t group) const {
    std::vector<std::pair<int32_t, int32_t>> found;
    for (const Member& member : members_[group]) found.emplace_back(cell_of(member), member.entry);
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

  /// Refines the cells once: numbers the groups by the cells of their members, then the ranks by
  /// their old cell and the cells of their groups. Cells can only be split, never merged.
  void refine() {
    CellNumbers groups, ranks;
    group_cell_.clear();
    for (size_t g = 0; g < members_.size(); ++g) {
      std::vector<int32_t> key;
      for (const auto& [cell, entry] : member_cells(g)) key.insert(key.end(), {cell, entry});
      group_cell_.push_back(groups.id_of(std::move(key)));
    }
    std::vector<int32_t> refined;
    for (size_t r = 0; r < world_.ranks.size(); ++r) {
      std::vector<int32_t> key{rank_cell_[r]};
      for (const int32_t group : world_.ranks[r].groups) key.push_back(cell_of_group(group));
      refined.push_back(ranks.id_of(std::move(key)));
    }
    rank_cell_ = std::move(refined);
    rank_cells_ = ranks.count();
    group_cells_ = groups.count();
  }

  int32_t cell_of_group(int32_t group) const {
    return group == World::kNotMember ? World::kNotMember : group_cell_[static_cast<size_t>(group)];
  }

  /// Returns whether all members of a group that are in one cell have the group at one index.
  bool cells_have_one_entry() const {
    for (size_t g = 0; g < members_.size(); ++g) {
      const auto cells = member_cells(g);
      const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
      if (std::adjacent_find(cells.begin(), cells.end(), same) != cells.end()) return false;
    }
    return true;
  }

  World build() const {
    World folded{.programs = world_.programs,
                 .ranks = {},
                 .groups = std::vector<World::Group>(group_cells_)};
    // The first rank (or group) of a cell represents the cell. Cells are numbered in the order of
    // their first ranks.
    for (size_t r = 0; r < world_.ranks.size(); ++r) {
      if (static_cast<size_t>(rank_cell_[r]) != folded.ranks.size()) continue;
      World::Rank& rank = folded.ranks.emplace_back(world_.ranks[r]);
      for (int32_t& group : rank.groups) group = cell_of_group(group);
    }
    for (size_t g = 0; g < members_.size(); ++g) {
      World::Group& group = folded.groups[static_cast<size_t>(group_cell_[g])];
      if (!group.members.empty()) continue;
      group.name = world_.groups[g].name;
      for (const auto& [cell, entry] : member_cells(g)) group.members.push_back(cell);
    }
    return folded;
  }

  const World& world_;
  /// The members of each group.
  std::vector<std::vector<Member>> members_;
  std::vector<int32_t> rank_cell_, group_cell_;
  size_t rank_cells_ = 0, group_cells_ = 0;
};

}  // namespace

std::optional<World> fold_world(const World& world, std::span<const int32_t> schedule_of) {
  return WorldFolder(world, schedule_of).run();
}

}  // namespace ftrun
