#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <utility>

#include "mutants.h"
#include "sweep.h"

#include <catch2/catch.hpp>

// Some parts of a program follow from a rank's position in the mesh: which part of the gradient
// norm it counts, and which part of the state it saves. These tests give one such part to another
// rank's program at a time.

namespace ftrun {
namespace {

using namespace testing;

StepCase step_case_of(Mesh mesh, int stage) {
  ModelConfig config = small_config(2, true);
  config.hidden = 64;
  config.feed_forward = 48 * mesh.tensor;
  config.vocab_rows = 160 * mesh.tensor;
  StepCase step_case = small_step_case(config, mesh);
  step_case.options.state.zero_stage = stage;
  std::mt19937_64 random(5);
  if (mesh.stages > 1) add_pipeline(random, step_case, PipelineSchedule::k1F1B, mesh.stages, 1);
  return step_case;
}

/// Returns "" if each element of the model's state is saved by exactly one rank, otherwise a
/// message about the first that is not.
std::string saved_fault(const StepCase& step_case, const std::vector<StepProgram>& steps) {
  // `saved` counts the ranks that save each element, by tensor rank, unit and state.
  std::map<std::tuple<int, UnitId, int32_t>, std::vector<int>> saved;
  const auto states = static_cast<int32_t>(step_case.options.state.optimizer_states.size());
  for (int tensor = 0; tensor < step_case.mesh.tensor; ++tensor)
    for (const Unit& unit : step_case.built.partition.units)
      for (int32_t state = UnitStatePiece::kParam; state < states; ++state)
        saved[{tensor, unit.id, state}].assign(static_cast<size_t>(unit.padded_numel), 0);
  for (size_t rank = 0; rank < steps.size(); ++rank)
    for (const UnitStatePiece& piece : steps[rank].pieces) {
      if (piece.state == UnitStatePiece::kWorking) continue;
      auto& counts =
          saved.at({static_cast<int>(rank) % step_case.mesh.tensor, piece.unit, piece.state});
      for (int64_t e = piece.saved.begin; e < piece.saved.end; ++e)
        if (e < static_cast<int64_t>(counts.size())) ++counts[static_cast<size_t>(e)];
    }
  for (const auto& [which, counts] : saved)
    for (const TensorSlice& slice : step_case.built.partition.unit(std::get<1>(which)).slices)
      for (int64_t e = slice.position_in_unit; e < slice.position_in_unit + slice.extent; ++e)
        if (const int count = counts[static_cast<size_t>(e)]; count != 1)
          return cat("element ", e, " of unit ", std::get<1>(which), ", state ", std::get<2>(which),
                     ", is saved ", count, " times");
  return "";
}

std::vector<MutatedCase> cases_of_places() {
  std::vector<MutatedCase> all;
  const auto add = [&](std::string name, StepCase step_case) {
    all.push_back({std::move(name), std::move(step_case)});
  };
  for (const int stage : {0, 1, 2, 3}) {
    add(cat("shards, stage ", stage), step_case_of({.shards = 4}, stage));
    add(cat("replicas of shards, stage ", stage),
        step_case_of({.shards = 2, .replicas = 2}, stage));
    add(cat("shards of tensor ranks, stage ", stage),
        step_case_of({.shards = 2, .tensor = 2}, stage));
    if (stage == 1 || stage == 3)
      add(cat("shards that share rows, stage ", stage),
          step_case_of({.shards = 4, .context = 2}, stage));
    if (stage < 2)
      add(cat("shards of stages, stage ", stage), step_case_of({.shards = 2, .stages = 2}, stage));
  }
  return all;
}

const Instr& norm_of(const Program& program) {
  return program.instrs[positions_of(program, InstrKind::kGradientNorm).at(0)];
}

TEST_CASE("the checker notices a rank that counts another rank's part of the norm", "[long]") {
  size_t mutants = 0;
  for (const MutatedCase& c : cases_of_places()) {
    Mutants world(c, 31);
    REQUIRE(world.faults(world.good()).empty());
    for (size_t rank = 0; rank < world.good().size(); ++rank)
      for (size_t other = 0; other < world.good().size(); ++other) {
        const Instr& theirs = norm_of(world.good()[other].program);
        std::vector<StepProgram> steps = world.good();
        Instr& own_instr =
            steps[rank]
                .program.instrs[positions_of(steps[rank].program, InstrKind::kGradientNorm).at(0)];
        const bool same = own_instr.reads == theirs.reads && own_instr.writes == theirs.writes &&
                          std::get<GradientNormSlots>(own_instr.detail).index ==
                              std::get<GradientNormSlots>(theirs.detail).index;
        if (same) continue;
        own_instr.reads = theirs.reads;
        own_instr.writes = theirs.writes;
        own_instr.detail = theirs.detail;
        INFO(c.name << ", rank " << rank << " as rank " << other);
        CHECK((!world.faults(steps).empty() || world.compute_other_results(steps)));
        ++mutants;
      }
  }
  CHECK(mutants > 50);
}

TEST_CASE(
    "a rank that counts a range of the norm twice, or one that another rank counts, is noticed") {
  size_t mutants = 0;
  std::mt19937_64 random(41);
  for (const MutatedCase& c : cases_of_places()) {
    Mutants world(c, 32);
    std::vector<StepProgram> steps = world.good();
    for (size_t rank = 0; rank < world.good().size(); ++rank) {
      const Instr& norm = norm_of(world.good()[rank].program);
      Instr& own_instr =
          steps[rank]
              .program.instrs[positions_of(steps[rank].program, InstrKind::kGradientNorm).at(0)];
      for (size_t range = 0; range + 1 < norm.reads.size(); range += 3) {
        if (random() % sweep_stride(1) != 0) continue;
        // The next range's sum is replaced by this range's.
        own_instr.reads[range + 1] = own_instr.reads[range];
        if (own_instr.reads == norm.reads) continue;
        INFO(c.name << ", rank " << rank << ", range " << range);
        CHECK((!world.faults(steps).empty() || world.compute_other_results(steps)));
        own_instr.reads = norm.reads;
        ++mutants;
      }
    }
  }
  CHECK(mutants > static_cast<size_t>(sweep_rounds(20)));
}

TEST_CASE(
    "every element of the state is saved by one rank, and a part that another rank saves is "
    "noticed") {
  size_t mutants = 0;
  std::mt19937_64 random(37);
  for (const auto& [name, step_case] : cases_of_places()) {
    const std::vector<StepProgram> good = step_case.steps();
    INFO(name);
    REQUIRE(saved_fault(step_case, good) == "");
    // All mutants share one copy, because programs are large; each change is undone.
    std::vector<StepProgram> steps = good;
    for (size_t rank = 0; rank < good.size(); ++rank)
      for (size_t p = 0; p < good[rank].pieces.size(); ++p) {
        const UnitRange own_range = good[rank].pieces[p].saved;
        const size_t other = (rank + static_cast<size_t>(step_case.mesh.tensor)) % good.size();
        if (good[other].pieces.size() != good[rank].pieces.size()) continue;
        const UnitRange theirs = good[other].pieces[p].saved;
        if (own_range.begin == theirs.begin && own_range.end == theirs.end) continue;
        if (random() % sweep_stride(1) != 0) continue;
        steps[rank].pieces[p].saved = theirs;
        const std::string fault = saved_fault(step_case, steps);
        steps[rank].pieces[p].saved = own_range;
        // A part behind the last tensor holds nothing that is saved.
        const Unit& unit = step_case.built.partition.unit(good[rank].pieces[p].unit);
        const int64_t end = unit.slices.back().position_in_unit + unit.slices.back().extent;
        if (std::min(own_range.begin, theirs.begin) < end) CHECK(fault != "");
        ++mutants;
      }
  }
  CHECK(mutants > static_cast<size_t>(sweep_rounds(50)));
}

}  // namespace
}  // namespace ftrun
