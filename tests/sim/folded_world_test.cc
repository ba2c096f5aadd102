#include "sim/folded_world.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "program/step_cases.h"
#include "sim/rank_classes.h"
#include "sim/walk.h"
#include "sweep.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns a world of ranks with these programs, where each rank is in these groups.
World world_of_programs(const std::vector<int32_t>& programs,
                        const std::vector<std::vector<int32_t>>& groups) {
  static const Program program;
  World world;
  world.programs.assign(programs.size(), &program);
  for (size_t r = 0; r < programs.size(); ++r) {
    World::Rank rank{.number = static_cast<int>(r), .program = programs[r]};
    rank.groups = groups[r];
    for (const int32_t group : groups[r]) {
      world.groups.resize(std::max(world.groups.size(), static_cast<size_t>(group) + 1));
      auto& members = world.groups[static_cast<size_t>(group)].members;
      if (members.empty() || members.back() != static_cast<int32_t>(r))
        members.push_back(static_cast<int32_t>(r));
    }
    world.ranks.push_back(rank);
  }
  return world;
}

std::vector<int32_t> numbers_up_to(size_t count) {
  std::vector<int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST_CASE("equal replicas of a pipeline are folded into one") {
  // Three replicas have stages 0 and 1 each. Groups 0 and 1 connect the ranks of a stage; groups 2
  // to 4 connect the stages of a replica.
  const World world =
      world_of_programs({0, 0, 0, 1, 1, 1}, {{0, 2}, {0, 3}, {0, 4}, {1, 2}, {1, 3}, {1, 4}});
  const auto folded = fold_world(world, numbers_up_to(6));
  REQUIRE(folded);
  REQUIRE(folded->ranks.size() == 2);
  CHECK(folded->ranks[0].number == 0);
  CHECK(folded->ranks[1].number == 3);
  REQUIRE(folded->groups.size() == 3);
  CHECK(folded->groups[static_cast<size_t>(folded->group_of(0, 0))].members ==
        std::vector<int32_t>{0});
  CHECK(folded->groups[static_cast<size_t>(folded->group_of(1, 0))].members ==
        std::vector<int32_t>{1});
  CHECK(folded->group_of(0, 1) == folded->group_of(1, 1));
  CHECK(folded->groups[static_cast<size_t>(folded->group_of(0, 1))].members ==
        std::vector<int32_t>{0, 1});
  CHECK(folded->group_of(0, 2) == World::kNotMember);
}

TEST_CASE("ranks with equal schedules are distinguished by their groups' other members") {
  // Ranks 0 to 3 have the same schedule. Ranks 0 and 1 share a group with a rank of another
  // schedule; 2 and 3 share one with each other.
  const World world = world_of_programs({0, 0, 0, 0, 1}, {{0}, {0}, {1}, {1}, {0}});
  const auto folded = fold_world(world, numbers_up_to(5));
  REQUIRE(folded);
  CHECK(folded->ranks.size() == 3);
}

TEST_CASE("a ring of equal ranks is not folded") {
  // Each rank's first group has the next rank as its other member, its second group the one before,
  // so no rank can stand for the others.
  const World world = world_of_programs({0, 0, 0}, {{0, 2}, {1, 0}, {2, 1}});
  CHECK(!fold_world(world, numbers_up_to(3)));
}

TEST_CASE("a group that has a member which does not list it differs from other groups") {
  World world = world_of_programs({0, 0, 1, 1}, {{0}, {1}, {0}, {}});
  world.groups[1].members.push_back(3);
  const auto folded = fold_world(world, numbers_up_to(4));
  REQUIRE(folded);
  CHECK(folded->ranks.size() == 4);
  CHECK(folded->groups[static_cast<size_t>(folded->group_of(1, 0))].members.size() == 2);
}

bool reach_end(const World& world, const std::vector<LaneSchedule>& schedules) {
  Walk walk(world, schedules);
  walk.begin();
  while (!walk.has_fault() && !walk.ready().empty()) walk.finish(walk.ready().size() - 1);
  return walk.fault_text().empty();
}

/// Damages the schedule of a class in one of four ways: an entry is missing, two are swapped, an
/// entry announces something else, or a wait needs more entries.
void break_schedule(LaneSchedule& schedule, std::mt19937_64& random) {
  auto& lane =
      schedule
          .lanes[static_cast<size_t>(schedule.used_lanes[random() % schedule.used_lanes.size()])];
  if (lane.empty()) return;
  const size_t at = random() % lane.size();
  const auto kind = random() % 4;
  if (kind == 0) {
    lane.erase(lane.begin() + static_cast<int64_t>(at));
  } else if (kind == 1) {
    std::swap(lane[at], lane[random() % lane.size()]);
  } else if (kind == 2) {
    lane[at].announcement_hash += 1 + random() % 3;
  } else if (!schedule.waits.empty()) {
    schedule.waits[random() % schedule.waits.size()].entries +=
        1 + static_cast<int32_t>(random() % 3);
  }
}

TEST_CASE("the folded world reaches the end exactly when all ranks do") {
  std::mt19937_64 random(2311);
  int folds = 0, ends = 0, hangs = 0;
  const int rounds = sweep_rounds(120);
  for (int round = 0; round < rounds; ++round) {
    const StepCase step_case = random_step_case(random);
    const StateOptions state = step_case.options_of_rank(0).state;
    const RankClasses classes =
        find_rank_classes(step_case.built.model, step_case.built.partition, state);
    const std::vector<StepProgram> steps = step_case.steps();
    std::vector<const Program*> programs;
    for (const int rank : classes.lowest_ranks)
      programs.push_back(&steps[static_cast<size_t>(rank)].program);
    const World world = world_of(classes, programs, state);
    std::vector<LaneSchedule> schedules;
    for (const Program* program : programs) schedules.push_back(make_collective_schedule(*program));
    for (int damages = 0; damages < 6; ++damages) {
      INFO("round " << round << ", " << damages << " damages: " << step_case.text());
      std::vector<LaneSchedule> changed = schedules;
      for (int i = 0; i < damages; ++i) {
        LaneSchedule& schedule = changed[random() % changed.size()];
        if (!schedule.used_lanes.empty()) break_schedule(schedule, random);
        // In some rounds all classes get the same damaged schedule, which often still reaches the
        // end.
        if (damages % 2 == 0) changed.assign(changed.size(), LaneSchedule(schedule)), i = damages;
      }
      const auto folded = fold_world(world, number_equal_schedules(changed));
      if (!folded) continue;
      folds += folded->ranks.size() < world.ranks.size();
      const bool end = reach_end(world, changed);
      REQUIRE(reach_end(*folded, changed) == end);
      ++(end ? ends : hangs);
    }
  }
  CHECK(folds > rounds);
  CHECK(ends > rounds);
  CHECK(hangs > rounds);
}

}  // namespace
}  // namespace ftrun
