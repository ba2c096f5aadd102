#include "sim/rank_classes.h"

#include <algorithm>
#include <random>

#include "axes/mesh.h"
#include "equal_programs.h"
#include "program/step_cases.h"
#include "sim/program_checker.h"
#include "sweep.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;
using Faults = std::vector<std::string>;

RankClasses classes_of(const StepCase& step_case) {
  return find_rank_classes(step_case.built.model, step_case.built.partition,
                           step_case.options_of_rank(0).state);
}

/// Checks that the ranks of each class have equal programs. Returns how many pairs of classes have
/// equal programs too, and could have been joined.
int check_classes(const RankClasses& classes, const std::vector<StepProgram>& steps) {
  const auto program_of = [&](int rank) -> const Program& {
    return steps[static_cast<size_t>(rank)].program;
  };
  REQUIRE(classes.ranks() == static_cast<int>(steps.size()));
  for (int rank = 0; rank < classes.ranks(); ++rank) {
    const int first = classes.lowest_ranks[static_cast<size_t>(classes.class_of(rank))];
    INFO("ranks " << first << " and " << rank);
    REQUIRE(first <= rank);
    const std::string difference = difference_but_place(program_of(first), program_of(rank));
    if (!difference.empty()) UNSCOPED_INFO(program_text(program_of(rank)));
    REQUIRE(difference == "");
  }
  int equal = 0;
  for (size_t c = 0; c < classes.lowest_ranks.size(); ++c)
    for (size_t d = 0; d < c; ++d)
      equal += difference_but_place(program_of(classes.lowest_ranks[c]),
                                    program_of(classes.lowest_ranks[d])) == "";
  return equal;
}

World world_of_classes(const RankClasses& classes, const std::vector<StepProgram>& steps,
                       const StateOptions& state) {
  std::vector<const Program*> programs;
  for (const int rank : classes.lowest_ranks)
    programs.push_back(&steps[static_cast<size_t>(rank)].program);
  return world_of(classes, programs, state);
}

/// Returns the world of the same ranks, with a separate program for each rank.
World world_of_steps(const std::vector<StepProgram>& steps) {
  std::vector<RankProgram> ranks;
  for (const StepProgram& step : steps)
    ranks.push_back({static_cast<int>(ranks.size()), &step.program});
  return world_of(ranks);
}

using Groups = std::vector<std::pair<std::string, std::vector<int32_t>>>;

/// Returns the groups of a rank, by GroupId.
Groups groups_of(const World& world, size_t rank) {
  Groups groups;
  for (const int32_t group : world.ranks[rank].groups)
    if (group != World::kNotMember) {
      const World::Group& found = world.groups[static_cast<size_t>(group)];
      groups.emplace_back(found.name, found.members);
    }
  return groups;
}

/// Checks that the world of the classes equals the world of all programs, and has no fault.
void check_world_of_classes(const RankClasses& classes, const std::vector<StepProgram>& steps,
                            const StateOptions& state) {
  const World world = world_of_classes(classes, steps, state);
  const World expected = world_of_steps(steps);
  REQUIRE(world.ranks.size() == expected.ranks.size());
  REQUIRE(world.groups.size() == expected.groups.size());
  for (size_t rank = 0; rank < world.ranks.size(); ++rank) {
    REQUIRE(world.ranks[rank].number == expected.ranks[rank].number);
    REQUIRE(groups_of(world, rank) == groups_of(expected, rank));
  }
  REQUIRE(find_program_faults(world) == Faults{});
}

/// Checks the classes of a step case and their world; returns the number of classes.
int classes_that_hold(const StepCase& step_case) {
  const std::vector<StepProgram> steps = step_case.steps();
  const RankClasses classes = classes_of(step_case);
  check_classes(classes, steps);
  check_world_of_classes(classes, steps, step_case.options_of_rank(0).state);
  return classes.count();
}

TEST_CASE("ranks of one class have programs that are equal up to their place, in random cases") {
  std::mt19937_64 random(1401);
  int joined = 0;
  int split = 0;
  int needless = 0;
  const int rounds = sweep_rounds(150);
  for (int round = 0; round < rounds; ++round) {
    const StepCase step_case = random_step_case(random);
    INFO("round " << round << ": " << step_case.text());
    const std::vector<StepProgram> steps = step_case.steps();
    const RankClasses classes = classes_of(step_case);
    needless += check_classes(classes, steps);
    check_world_of_classes(classes, steps, step_case.options_of_rank(0).state);
    joined += classes.ranks() - classes.count();
    split += classes.count() - 1;
  }
  CHECK(joined > rounds);
  CHECK(split > rounds);
  CHECK(needless < split / 20);
}

TEST_CASE("ranks with padding of a vocabulary and ranks without are in classes of their own") {
  std::mt19937_64 random(1404);
  for (int found = 0; found < 10;) {
    StepCase step_case = random_step_case(random);
    if (step_case.mesh.tensor == 1) continue;
    ++found;
    INFO(step_case.text());
    // The tensor has one row less than the ranks' parts hold together, so the last tensor rank has
    // padding.
    for (TensorInfo& tensor : step_case.built.model.tensors)
      if (tensor.shape[0] != tensor.local.extent[0]) --tensor.shape[0];
    const RankClasses classes = classes_of(step_case);
    const RankMesh mesh = state_mesh(step_case.options_of_rank(0).state);
    for (int rank = 0; rank < classes.ranks(); ++rank) {
      const PerAxis place = mesh.coordinates_of(rank);
      if (place.tensor + 1 == step_case.mesh.tensor) continue;
      PerAxis last = place;
      last.tensor = step_case.mesh.tensor - 1;
      CHECK(classes.class_of(rank) != classes.class_of(mesh.rank_at(last)));
    }
  }
}

TEST_CASE(
    "ranks of one class have equal programs where parts are frozen or ranks share the norm's "
    "slots") {
  std::mt19937_64 random(1402);
  int split = 0;
  const int rounds = sweep_rounds(60);
  for (int round = 0; round < rounds; ++round) {
    StepCase step_case = random() % 2 == 0 ? with_frozen_below(random_step_case(random), random)
                                           : with_frozen(random_step_case(random), random, 40);
    step_case.options.state.max_gradient_norm_slots = pick<int64_t>(random, {1, 1 << 17});
    INFO("round " << round << ": " << step_case.text());
    split += classes_that_hold(step_case) - 1;
  }
  CHECK(split > rounds / 3);
}

TEST_CASE("ranks of one class have equal programs where states are codes") {
  std::mt19937_64 random(1403);
  int split = 0;
  const int rounds = sweep_rounds(60);
  for (int round = 0; round < rounds; ++round) {
    const StepCase step_case = with_8bit_states(random_step_case(random), random);
    INFO("round " << round << ": " << step_case.text());
    split += classes_that_hold(step_case) - 1;
  }
  CHECK(split > rounds / 3);
}

/// Returns a step case with layers of a few blocks each, so that shards begin and end within
/// matrices, at norms and behind the last tensor. Tensors of at most `small` elements are in units
/// that are not sharded.
StepCase wide_step_case(int stage, Mesh mesh, Tier optimizer, int64_t small = 0) {
  ModelConfig config = small_config(2, false);
  config.hidden = 64;
  config.feed_forward = 240;
  config.vocab_rows = 480;
  StepCase step_case{
      build(config, GraphMode::kTrain, UnitGranularity::kLayer, {1, 4}, {mesh.tensor, 0, true}),
      {.micro_batches = 2, .bucket_elements = 20'000, .gather_bucket_elements = 20'000},
      mesh,
      config};
  step_case.built.partition =
      build_units(step_case.built.model, UnitGranularity::kLayer, {small, INT64_MAX});
  step_case.options.state.zero_stage = stage;
  step_case.options.state.optimizer_tier = optimizer;
  step_case.options.state.update_elements = kUnitBlock;
  step_case.options.state.secondary_shards = mesh.secondary_shards;
  step_case.options.state.decays = decays_matrices;
  return step_case;
}

TEST_CASE("each stage, tier and mesh of up to 48 ranks has classes of equal programs", "[long]") {
  const std::vector<Mesh> meshes{{.shards = 3},
                                 {.shards = 11},
                                 {.shards = 24, .replicas = 2},
                                 {.shards = 12, .secondary_shards = 4},
                                 {.shards = 5, .tensor = 2},
                                 {.shards = 6, .context = 3},
                                 {.shards = 6, .replicas = 2, .secondary_shards = 3, .tensor = 4}};
  for (const Mesh& mesh : meshes)
    for (const int stage : {0, 1, 2, 3})
      for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk})
        for (const int64_t small : {0, 10'000}) {
          if (stage == 0 && (mesh.replicas > 1 || tier != Tier::kDevice)) continue;
          const StepCase step_case = wide_step_case(stage, mesh, tier, small);
          INFO(step_case.text() << ", small up to " << small);
          const std::vector<StepProgram> steps = step_case.steps();
          const RankClasses classes = classes_of(step_case);
          check_classes(classes, steps);
          check_world_of_classes(classes, steps, step_case.options_of_rank(0).state);
        }
}

TEST_CASE("ranks that share rows have the same classes as shards that do not") {
  for (const int stage : {0, 1, 3}) {
    const StepCase apart = wide_step_case(stage, {.shards = 12, .tensor = 2}, Tier::kDevice);
    StepCase together = apart;
    together.mesh.context = 3;
    INFO(together.text());
    CHECK(classes_of(together).of_rank == classes_of(apart).of_rank);
    CHECK(classes_that_hold(together) == classes_of(apart).count());
  }
}

TEST_CASE("thousands of ranks have as few classes as a few ranks") {
  for (const int stage : {0, 1, 3}) {
    int most = 0;
    for (const int shards : {16, 128, 1024, 4096}) {
      const StepCase step_case =
          wide_step_case(stage, {.shards = shards, .tensor = 4}, Tier::kDevice);
      const RankClasses classes = classes_of(step_case);
      INFO("stage " << stage << ", " << classes.ranks() << " ranks");
      CHECK(classes.ranks() == shards * 4);
      most = std::max(most, classes.count());
    }
    CHECK(most <= 8);
  }
}

TEST_CASE("programs that differ in more than their rank's position are in different classes") {
  const StepCase step_case = wide_step_case(2, {.shards = 3}, Tier::kHost);
  const Program good = step_case.step(0).program;
  const auto differs = [&](auto change) {
    Program other = good;
    change(other);
    return difference_but_place(good, other) != "";
  };
  CHECK_FALSE(differs([](Program&) {}));
  CHECK(differs([](Program& p) { p.instrs.pop_back(); }));
  CHECK(differs([](Program& p) { p.instrs[5].waits.push_back(0); }));
  CHECK(differs([](Program& p) { p.instrs[2].reads[0].offset += 4; }));
  CHECK(differs([](Program& p) { p.instrs.back().writes[0].bytes -= 4; }));
  CHECK(differs([](Program& p) { p.buffers[3].bytes += 64; }));
  CHECK(differs([](Program& p) { p.arena_bytes[0] += 64; }));
  const auto scatter = positions_of(good, InstrKind::kReduceScatter).at(0);
  CHECK(differs([&](Program& p) { p.instrs[scatter].reads[0].offset += 4; }));
}

TEST_CASE("a class whose program has other collectives is named by its first rank") {
  const StepCase step_case = wide_step_case(1, {.shards = 5, .tensor = 2}, Tier::kDevice);
  std::vector<StepProgram> steps = step_case.steps();
  const RankClasses classes = classes_of(step_case);
  REQUIRE(classes.count() > 1);
  const int rank = classes.lowest_ranks[1];
  Program& program = steps[static_cast<size_t>(rank)].program;
  Instr& loss = program.instrs[positions_of(program, InstrKind::kAllReduce).at(0)];
  loss.communication().dtype =
      loss.communication().dtype == DType::kF64 ? DType::kF32 : DType::kF64;
  const Faults faults =
      find_program_faults(world_of_classes(classes, steps, step_case.options_of_rank(0).state));
  REQUIRE_FALSE(faults.empty());
  INFO(faults.back());
  CHECK(faults.back().find(cat("rank ", rank, " enters ")) != std::string::npos);
}

}  // namespace
}  // namespace ftrun
