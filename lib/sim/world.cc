#include "sim/world.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ftrun {
namespace {

/// WorldBuilder makes a world of the given ranks, storing each program and each group once.
class WorldBuilder {
 public:
  explicit WorldBuilder(std::span<const RankProgram> ranks)
      : rank_programs_(ranks.begin(), ranks.end()) {
    std::stable_sort(rank_programs_.begin(), rank_programs_.end(),
                     [](const auto& a, const auto& b) { return a.rank < b.rank; });
    for (size_t r = 0; r < rank_programs_.size(); ++r)
      rank_indices_.emplace(rank_programs_[r].rank, static_cast<int32_t>(r));
  }

  World build() {
    for (const RankProgram& rank : rank_programs_) add(rank);
    return std::move(world_);
  }

 private:
  void add(const RankProgram& rank_program) {
    World::Rank rank{.number = rank_program.rank,
                     .program = index_of_program(rank_program.program)};
    rank.groups.assign(rank_program.program->groups.size(), World::kNotMember);
    for (size_t g = 0; g < rank_program.program->groups.size(); ++g) {
      const RankGroup& group = rank_program.program->groups[g].members;
      if (group.index_of(rank_program.rank) >= 0) rank.groups[g] = index_of_group(group);
    }
    world_.ranks.push_back(rank);
  }

  int32_t index_of_program(const Program* program) {
    const auto [known, added] =
        programs_.try_emplace(program, static_cast<int32_t>(world_.programs.size()));
    if (added) world_.programs.push_back(program);
    return known->second;
  }

  int32_t index_of_group(const RankGroup& group) {
    const auto [known, added] = groups_.try_emplace({group.ranks, group.sender},
                                                    static_cast<int32_t>(world_.groups.size()));
    if (!added) return known->second;
    World::Group& made = world_.groups.emplace_back(World::Group{group.name(), {}});
    for (const int rank : group.ranks)
      if (const auto found = rank_indices_.find(rank); found != rank_indices_.end())
        made.members.push_back(found->second);
    return known->second;
  }

  std::vector<RankProgram> rank_programs_;
  std::map<int, int32_t> rank_indices_;
  std::map<const Program*, int32_t> programs_;
  /// The groups, by their ranks and the sender: a link and another group may have the same ranks.
  std::map<std::pair<std::vector<int>, int>, int32_t> groups_;
  World world_;
};

}  // namespace

World world_of(std::span<const RankProgram> ranks) {
  return WorldBuilder(ranks).build();
}

}  // namespace ftrun
