#include <algorithm>
#include <map>
#include <set>

#include "program/buffer_names.h"
#include "program/traffic.h"
#include "sim/interpreter.h"
#include "step_cases.h"

#include <catch2/catch.hpp>

// These tests check secondary shards: parameters that are gathered a second time within a step are
// read from ranks of the same node.

namespace ftrun {
namespace {

using namespace testing;

/// Returns a step case of two blocks, tied or not, on four ranks in nodes of `neighbors`. Blocks
/// are gathered in forward and again in backward.
StepCase secondary_step_case(int neighbors, int32_t micro_batches = 1, bool tied = false) {
  ModelConfig config = small_config(2, tied);
  config.hidden = 64;
  config.feed_forward = 100;
  StepCase step_case{build(config),
                     {.micro_batches = micro_batches, .bucket_elements = 1},
                     {4, 1, neighbors},
                     config};
  step_case.options.state.zero_stage = 3;
  step_case.options.state.secondary_shards = neighbors;
  return step_case;
}

std::vector<const Instr*> gathers_of(const Program& program) {
  std::vector<const Instr*> found;
  for (const size_t i : positions_of(program, InstrKind::kAllGather))
    found.push_back(&program.instrs[i]);
  return found;
}

bool is_secondary(const Program& program, const BufferRange& range) {
  return program.at(range.buffer).name == buffer_names::kSecondary;
}

std::vector<const Instr*> copies_of_parts(const Program& program) {
  std::vector<const Instr*> found;
  for (const size_t i : positions_of(program, InstrKind::kCopy))
    if (is_secondary(program, program.instrs[i].writes[0])) found.push_back(&program.instrs[i]);
  return found;
}

TEST_CASE("the first gather of a unit runs over the shards, later ones over the neighbors") {
  for (const int32_t micro_batches : {1, 2, 3}) {
    const StepCase step_case = secondary_step_case(2, micro_batches);
    for (const StepProgram& step : step_case.steps()) {
      INFO(program_text(step.program));
      std::map<UnitId, int> times;
      for (const Instr* gather : gathers_of(step.program)) {
        const bool first = ++times[gather->unit] == 1;
        REQUIRE(axes_in(step.program, gather->group()) == (first ? "data" : "data/2"));
        REQUIRE(is_secondary(step.program, gather->reads[0]) == !first);
        REQUIRE(gather->reads[0].bytes * (first ? 4 : 2) == gather->writes[0].bytes);
      }
      // Backward does not read the embedding.
      REQUIRE(times == std::map<UnitId, int>{{0, micro_batches},
                                             {1, 2 * micro_batches},
                                             {2, 2 * micro_batches},
                                             {3, 2 * micro_batches}});
    }
  }
}

TEST_CASE("a rank keeps its own part of the node's copy, for units that are gathered again only") {
  const StepCase step_case = secondary_step_case(2);
  const std::vector<StepProgram> steps = step_case.steps();
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    const Program& program = steps[rank].program;
    std::set<UnitId> kept;
    int64_t bytes = 0;
    for (const Instr* copy : copies_of_parts(program)) {
      const BufferRange& from = copy->reads[0];
      REQUIRE(program.at(from.buffer).bytes == 2 * from.bytes);
      REQUIRE(from.offset == static_cast<int64_t>(rank % 2) * from.bytes);
      REQUIRE(copy->writes[0].offset == bytes);
      // Compute does not wait for this copy.
      REQUIRE(copy->lane == lane_of(0));
      kept.insert(copy->unit);
      bytes += from.bytes;
    }
    REQUIRE(kept == std::set<UnitId>{1, 2, 3});
    const Buffer& secondary = program.at(buffer_named(program, buffer_names::kSecondary));
    REQUIRE(secondary.bytes == bytes);
    REQUIRE(secondary.persistent_kind);
    REQUIRE(secondary.peer_visible);
    REQUIRE(secondary.category == Category::kParameters);
    REQUIRE(secondary.tier == Tier::kDevice);
    REQUIRE(secondary.format.dtype == step_case.built.model.dtypes.compute);
  }
  // The embedding is gathered again for the next micro-batch.
  REQUIRE(copies_of_parts(secondary_step_case(2, 2).step(0).program).size() == 4);
}

TEST_CASE("nodes of one rank, other stages and other programs do not have secondary shards") {
  const auto has = [](const Program& program) {
    return std::any_of(program.buffers.begin(), program.buffers.end(),
                       [](const Buffer& b) { return b.name == buffer_names::kSecondary; });
  };
  REQUIRE(has(secondary_step_case(2).step(0).program));
  REQUIRE_FALSE(has(secondary_step_case(1).step(0).program));
  for (int stage = 0; stage < 3; ++stage) {
    StepCase step_case = secondary_step_case(2);
    step_case.options.state.zero_stage = stage;
    REQUIRE_FALSE(has(step_case.step(0).program));
  }
  StepCase step_case = secondary_step_case(2, 2, true);  // tied: forward reads the matrix twice
  step_case.options.state.data = {4, 1};
  for (const GraphMode mode : {GraphMode::kEvaluate, GraphMode::kLogits}) {
    const ModelDescription model = build_model(step_case.config, {1, 4}, mode);
    const StepProgram step =
        mode == GraphMode::kEvaluate
            ? build_evaluation_step(model, step_case.built.partition, step_case.options)
            : build_generation_step(model, step_case.built.partition, step_case.options);
    REQUIRE_FALSE(has(step.program));
    for (const Instr* gather : gathers_of(step.program))
      REQUIRE(axes_in(step.program, gather->group()) == "data");
  }
}

TEST_CASE("parameters kept for their next use need no secondary shard") {
  StepCase step_case = secondary_step_case(2, 2);
  step_case.options.reuse_distance = 1'000'000;
  const Program program = step_case.step(0).program;
  REQUIRE(gathers_of(program).size() == 4);
  for (const Instr* gather : gathers_of(program))
    REQUIRE(axes_in(program, gather->group()) == "data");
  REQUIRE(copies_of_parts(program).empty());
}

TEST_CASE("parameters of other tiers are copied in once a step") {
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    StepCase step_case = secondary_step_case(2, 2);
    step_case.options.state.parameter_tier = step_case.options.state.optimizer_tier = tier;
    const Program program = step_case.step(0).program;
    INFO(program_text(program));
    std::map<UnitId, int> brought;
    for (const Instr& instr : program.instrs)
      if (instr.kind == InstrKind::kCopy && instr.lane == Lane::kToDevice && !instr.if_finite)
        ++brought[instr.unit];
    REQUIRE(brought == std::map<UnitId, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  }
}

TEST_CASE("with secondary shards a step sends the bytes that ZeRO++'s paper states") {
  // Every tensor has a multiple of 4096 x 4 elements. Two forward lists read the tied matrix.
  ModelConfig config = small_config(2, true);
  config.hidden = 16384;
  config.feed_forward = 4;
  config.query_heads = 2;
  config.head_size = 2;
  config.kv_heads = 1;
  const PartitionedModel built = build(config);
  for (const int neighbors : {2, 4}) {
    StepOptions options;
    options.state.zero_stage = 3;
    options.state.secondary_shards = neighbors;
    const Program program = built.step(options, 4);
    options.state.data = {4, 0};
    const TrafficTheory theory =
        compare_traffic_with_theory(program, built.model, built.partition, options);
    int64_t psi = 0;
    for (const Unit& unit : built.partition.units) psi += unit.numel;
    CHECK(theory.bytes == 2 * psi * 4 * 3 / 4 + psi * 4 * (neighbors - 1) / neighbors);
    const Traffic traffic = program_traffic(program);
    INFO(planned_traffic_text(traffic, theory));
    std::map<std::string, int64_t> gathered;
    for (const TrafficRow& row : traffic.rows)
      if (row.kind == InstrKind::kAllGather) gathered[row.axes] += row.bytes;
    const int64_t over_shards = psi * 4 * 3 / 4;
    const int64_t over_neighbors = psi * 4 * (neighbors - 1) / neighbors;
    // If all shards are neighbors, the group of neighbors is the shard group.
    CHECK(gathered["data"] == over_shards + (neighbors == 4 ? over_neighbors : 0));
    CHECK(gathered["data/2"] == (neighbors == 4 ? 0 : over_neighbors));
    REQUIRE(theory.deviations.size() == 1);
    CHECK(theory.deviations[0].cause == "loss and gradient norm");
  }
}

TEST_CASE("the table of a small ZeRO-3 step with secondary shards") {
  const PartitionedModel built = build(small_config(1, true));
  StepOptions options{.micro_batches = 2};
  options.state.zero_stage = 3;
  options.state.secondary_shards = 2;
  const Program program = built.step(options, 4);
  options.state.data = {4, 0};
  CHECK(planned_traffic_text(
            program_traffic(program),
            compare_traffic_with_theory(program, built.model, built.partition, options)) ==
        "bytes that a rank sends each time the program runs\n"
        "  all_reduce over 4 ranks along data, 2 calls                                252 B\n"
        "  reduce_scatter over 4 ranks along data, 6 calls                         294912 B\n"
        "  all_gather over 4 ranks along data, 3 calls                             147456 B\n"
        "  all_gather over 2 ranks along data/2, 9 calls                           294912 B\n"
        "  sum, 720.25 KiB                                                         737532 B\n"
        "  theory: 2 x 2480 elements x 3/4 + 2480 x 1/2                             19840 B\n"
        "  padding of units and shards                                             373376 B\n"
        "  repetition for each micro-batch                                         344064 B\n"
        "  loss and gradient norm                                                     252 B\n");
}

TEST_CASE(
    "the text of a step with secondary shards names the secondary parameters and their group") {
  const std::string text = program_text(secondary_step_case(2).step(1).program);
  INFO(text);
  CHECK(text.find("  parameters.secondary  parameters  ") != std::string::npos);
  CHECK(text.find("all_gather unit 1 mb 0 over data ") != std::string::npos);
  CHECK(text.find("all_gather unit 1 mb 0 over data/2  reads parameters.secondary[") !=
        std::string::npos);
}

/// Runs two steps. Returns the fault, or the difference from the weights of the good programs; ""
/// for none.
std::string fault_or_difference(const StepCase& step_case, std::vector<StepProgram> steps,
                                std::mt19937_64& random) {
  const auto weights = [&](const StepCase& of, std::vector<StepProgram> programs,
                           std::string& fault) {
    Interpreter interpreter(of.built.model, of.built.partition, std::move(programs),
                            of.mesh.grid());
    interpreter.load();
    for (int step = 0; step < 2 && fault.empty(); ++step) fault = interpreter.run(random);
    return interpreter.collect_state(UnitStatePiece::kParam, fault);
  };
  std::string fault;
  const StepCase oracle = plain(step_case);
  const auto expected = weights(oracle, oracle.steps(), fault);
  REQUIRE(fault == "");
  const auto found = weights(step_case, std::move(steps), fault);
  if (!fault.empty()) return fault;
  return found == expected ? "" : "other weights";
}

TEST_CASE("secondary shards of every number of neighbors have the weights of the plain program") {
  std::mt19937_64 random(1101);
  for (const int neighbors : {1, 2, 4})
    for (const int32_t micro_batches : {1, 2})
      for (const bool tied : {false, true}) {
        const StepCase step_case = secondary_step_case(neighbors, micro_batches, tied);
        const std::vector<StepProgram> steps = step_case.steps();
        std::vector<const Program*> programs;
        for (const StepProgram& step : steps) programs.push_back(&step.program);
        REQUIRE(check_programs(programs) == std::vector<std::string>{});
        CHECK(fault_or_difference(step_case, steps, random) == "");
      }
}

TEST_CASE(
    "a secondary shard that is not kept, or is another rank's, changes the weights or is refused") {
  std::mt19937_64 random(1102);
  const StepCase step_case = secondary_step_case(2);
  const auto changed = [&](auto change) {
    std::vector<StepProgram> steps = step_case.steps();
    for (Instr& instr : steps[1].program.instrs)
      if (instr.kind == InstrKind::kCopy && is_secondary(steps[1].program, instr.writes[0])) {
        change(instr);
        break;
      }
    return fault_or_difference(step_case, std::move(steps), random);
  };
  CHECK(changed([](Instr&) {}) == "");
  CHECK(changed([](Instr& instr) { instr.reads[0].offset = 0; }) != "");
  CHECK(changed([](Instr& instr) {
          instr.kind = InstrKind::kGradientNorm;  // of no ranges: does nothing
          instr.detail = GradientNormSlots{};
          instr.reads.clear();
          instr.writes.clear();
        }) != "");
}

TEST_CASE("ranks that differ in their number of neighbors are refused") {
  const std::vector<StepProgram> two = secondary_step_case(2).steps();
  const std::vector<StepProgram> four = secondary_step_case(4).steps();
  const Program* ranks[] = {&two[0].program, &four[1].program};
  const std::vector<std::string> faults = check_programs(ranks);
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].find("all_gather") != std::string::npos);
}

}  // namespace
}  // namespace ftrun
