#include "conflicts.h"
#include "program/layer_instr.h"
#include "program/passes.h"
#include "program/traffic.h"
#include "step_cases.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

bool ranges_overlap(const std::vector<BufferRange>& a, const std::vector<BufferRange>& b) {
  for (const BufferRange& x : a)
    for (const BufferRange& y : b)
      if (overlaps(x, y)) return true;
  return false;
}

/// Returns whether an instruction must not run at the same time as another one.
bool do_instrs_conflict(const Instr& a, const Instr& b) {
  return ranges_overlap(a.writes, b.writes) || ranges_overlap(a.writes, b.reads) ||
         ranges_overlap(a.reads, b.writes);
}

TEST_CASE("instructions that touch the same bytes are ordered, with overlap and without") {
  std::mt19937_64 random(71);
  for (int round = 0; round < 30; ++round) {
    const PartitionedModel built =
        build(random_config(random), GraphMode::kTrain, kGranularities[round % 3]);
    const Program program = built.step({.micro_batches = 1 + round % 3,
                                        .bucket_elements = int64_t{1} << (random() % 16),
                                        .overlap = round % 2 == 0});
    const auto before = happens_before(program);
    for (size_t j = 0; j < program.instrs.size(); ++j)
      for (size_t i = 0; i < j; ++i)
        if (do_instrs_conflict(program.instrs[i], program.instrs[j])) REQUIRE(before[j][i]);
  }
}

TEST_CASE(
    "with overlap, backward never waits for a reduction and only the norm waits for gradients") {
  const Program program =
      build(small_config(3, false)).step({.micro_batches = 2, .bucket_elements = 1});
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (instr.lane != Lane::kCompute) continue;
    INFO(i << " " << instr_label(instr));
    // The decision waits for the other ranks' parts of the norm.
    const bool waits = instr.kind == InstrKind::kGradientNorm || instr.kind == InstrKind::kDecide;
    CHECK(instr.waits.empty() != waits);
  }
  const size_t norm = positions_of(program, InstrKind::kGradientNorm).front();
  const std::vector<size_t> reduces = positions_of(program, InstrKind::kAllReduce);
  const auto last = static_cast<InstrId>(reduces[reduces.size() - 2]);
  CHECK(program.instrs[norm].waits == std::vector<InstrId>{last});
}

TEST_CASE("with overlap, each reduction waits only for the backward before it") {
  const Program program = build(small_config(3, false)).step({.bucket_elements = 1});
  for (const size_t i : positions_of(program, InstrKind::kAllReduce)) {
    INFO(i);
    CHECK(program.instrs[i].waits == std::vector<InstrId>{static_cast<InstrId>(i) - 1});
  }
}

TEST_CASE("without overlap, the compute instruction after a reduction waits for it") {
  std::mt19937_64 random(72);
  for (int round = 0; round < 10; ++round) {
    const PartitionedModel built =
        build(random_config(random), GraphMode::kTrain, kGranularities[round % 3]);
    const Program program =
        built.step({.micro_batches = 2, .bucket_elements = 1, .overlap = false});
    const auto before = happens_before(program);
    for (const size_t reduce : positions_of(program, InstrKind::kAllReduce)) {
      size_t next = reduce;
      while (program.instrs[next].lane != Lane::kCompute) ++next;
      REQUIRE(before[next][reduce]);
    }
  }
}

/// Returns a program that updates state on another tier; its two ranks exchange gradients and
/// parameters.
Program offloaded_program(Tier tier, bool overlap) {
  StepOptions options{.micro_batches = 2, .bucket_elements = 1, .overlap = overlap};
  options.state.zero_stage = 3;
  options.state.parameter_tier = options.state.optimizer_tier = tier;
  options.state.update_elements = 4096;
  options.offload_activations = true;
  return build(small_config(3, false)).step(options);
}

/// Returns the number of pairs where the later instruction, on lane `later`, does not wait for the
/// earlier one, on lane `earlier`.
int count_concurrent_pairs(const Program& program, Lane later, Lane earlier) {
  const auto before = happens_before(program);
  int count = 0;
  for (size_t j = 0; j < program.instrs.size(); ++j)
    for (size_t i = 0; i < j; ++i)
      count +=
          program.instrs[j].lane == later && program.instrs[i].lane == earlier && before[j][i] == 0;
  return count;
}

TEST_CASE(
    "without overlap, computation and communication take turns, while copies run concurrently") {
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    INFO(tier_name(tier));
    CHECK(count_concurrent_pairs(offloaded_program(tier, true), Lane::kCompute, lane_of(0)) > 0);
    const Program program = offloaded_program(tier, false);
    CHECK(count_concurrent_pairs(program, Lane::kCompute, lane_of(0)) == 0);
    CHECK(count_concurrent_pairs(program, lane_of(0), Lane::kCompute) == 0);
    CHECK(count_concurrent_pairs(program, Lane::kCompute, Lane::kToHost) > 0);
    if (tier == Tier::kDisk)
      CHECK(count_concurrent_pairs(program, Lane::kCompute, Lane::kDisk) > 0);
    CHECK(check(program).empty());
  }
}

TEST_CASE("overlap changes waits and nothing that is computed") {
  const PartitionedModel built = build(small_config(2, true));
  const auto bare = [&](bool overlap) {
    Program program = built.step({.micro_batches = 2, .bucket_elements = 1, .overlap = overlap});
    for (Instr& instr : program.instrs) instr.waits.clear();
    for (Buffer& buffer : program.buffers) buffer.arena_offset = -1;
    program.arena_bytes = {};
    return program_text(program);
  };
  CHECK(bare(true) == bare(false));
  CHECK(program_text(built.step({.overlap = true})) !=
        program_text(built.step({.overlap = false})));
}

int conflicts_between_lanes(const Program& program) {
  int count = 0;
  for (const Instr& later : program.instrs)
    for (const Instr& earlier : program.instrs)
      if (&earlier < &later && earlier.lane != later.lane && do_instrs_conflict(earlier, later))
        ++count;
  return count;
}

/// Returns the number of missing waits that the checker reports.
int reported_missing_waits(const Program& program) {
  int count = 0;
  for (const std::string& fault : check(assign_arena_offsets(program)))
    if (fault.find(" does not wait for ") != std::string::npos) ++count;
  return count;
}

TEST_CASE(
    "a lane waits for another's write before it reads or writes, and for its read before it "
    "writes") {
  for (const Lane first : {Lane::kCompute, lane_of(0)}) {
    const Lane second = first == Lane::kCompute ? lane_of(0) : Lane::kCompute;
    const auto waits = [&](const Touch& earlier, const Touch& later) {
      Program program = program_of_touches({{Lane::kCompute, 0}, earlier, later});
      program.buffers[0].persistent_kind = PersistentKind::kParameters;
      program = assign_arena_offsets(add_waits(std::move(program), true));
      REQUIRE(unordered_conflicts(program, conflicts(program)).empty());
      for (Instr& instr : program.instrs) instr.waits.clear();
      REQUIRE(reported_missing_waits(program) == conflicts_between_lanes(program));
      program = add_waits(std::move(program), true);
      return program.instrs[2].waits == std::vector<InstrId>{1};
    };
    CHECK(waits({first, 1}, {second, 1, true, false}));
    CHECK(waits({first, 1}, {second, 1}));
    CHECK(waits({first, 0, true, false}, {second, 0}));
    CHECK_FALSE(waits({first, 0, true, false}, {second, 1}));
  }
}

TEST_CASE("two lanes may read the same bytes at the same time") {
  Program program = program_of_touches(
      {{Lane::kCompute, 0}, {Lane::kCompute, 0, true, false}, {lane_of(0), 0, true, false}});
  program = add_waits(std::move(program), true);
  CHECK(program.instrs[2].waits == std::vector<InstrId>{0});
}

TEST_CASE("ordering again gives the same waits") {
  const Program program =
      build(small_config(2, true)).step({.micro_batches = 2, .bucket_elements = 1});
  CHECK(program_text(add_waits(program, true)) == program_text(program));
}

// Programs with several groups.

/// Returns a step case with tensor ranks and two shards.
StepCase two_axes(int stage, int64_t layers = 3) {
  const ModelConfig config = small_config(layers, false);
  StepCase step_case{
      build(config, GraphMode::kTrain, UnitGranularity::kLayer, {1, 4}, {2, 0, true}),
      {.micro_batches = 2, .bucket_elements = 1, .prefetch_elements = 1},
      {.shards = 2, .tensor = 2},
      config};
  step_case.options.state.zero_stage = stage;
  return step_case;
}

Program program_of(const StepCase& step_case) {
  return build_training_step(step_case.built.model, step_case.built.partition,
                             step_case.options_of_rank(0))
      .program;
}

bool is_of_a_list(const Instr& instr) {
  return instr.layer >= 0 && instr.is_collective();
}

/// Returns whether operations of an instruction compute a parameter's gradient.
bool makes_gradients(const StepCase& step_case, const Instr& instr) {
  const LayerGraph& graph = step_case.built.model.graphs[static_cast<size_t>(instr.ops().graph)];
  const std::span<const Op> ops = ops_of(graph, instr);
  return std::any_of(ops.begin(), ops.end(), [&](const Op& op) {
    return std::any_of(op.out.begin(), op.out.end(),
                       [&](ValueId id) { return graph.at(id).role == ValueRole::kParamGrad; });
  });
}

TEST_CASE("weight gradients are computed while tensor ranks sum the input's gradient") {
  for (const int stage : {0, 2, 3}) {
    const StepCase step_case = two_axes(stage);
    const Program program = program_of(step_case);
    const auto before = happens_before(program);
    int sums = 0;
    for (const size_t sum : positions_of(program, InstrKind::kReduceScatter)) {
      const Instr& instr = program.instrs[sum];
      const size_t next = sum + 1;
      // In backward, the sum of a block comes right after the instruction that computes its
      // operand.
      if (!is_of_a_list(instr) || program.instrs[sum - 1].kind != InstrKind::kBackward ||
          step_case.built.model.layers[static_cast<size_t>(instr.layer)].kind != LayerKind::kBlock)
        continue;
      ++sums;
      INFO("stage " << stage << ", at " << sum << "\n" << program_text(program));
      bool beside = false;
      for (size_t i = next; i < program.instrs.size() && before[i][sum] == 0; ++i)
        beside |= program.instrs[i].kind == InstrKind::kBackward &&
                  program.instrs[i].layer == instr.layer &&
                  makes_gradients(step_case, program.instrs[i]);
      CHECK(beside);
    }
    CHECK(sums == 3 * 2 * 2);  // three blocks, two micro-batches, attention and MLP
  }
}

/// Lists what layers compute and exchange, in program order.
std::vector<std::string> lists_of(const Program& program) {
  std::vector<std::string> all;
  for (const Instr& instr : program.instrs) {
    if (instr.layer < 0) continue;
    std::string text = instr_label(instr);
    if (instr.runs_ops()) text += cat(" ", instr.ops().first_op, "+", instr.ops().op_count);
    for (const auto* ranges : {&instr.reads, &instr.writes})
      if (instr.is_collective())
        for (const BufferRange& range : *ranges) text += cat(" ", range.bytes);
    all.push_back(text);
  }
  return all;
}

TEST_CASE("buckets, prefetch and reuse do not change the collectives of lists or their order") {
  for (const int stage : {0, 1, 2, 3}) {
    StepCase step_case = two_axes(stage);
    const std::vector<std::string> plain = lists_of(program_of(step_case));
    step_case.options.bucket_elements = step_case.options.gather_bucket_elements = 1'000'000;
    step_case.options.prefetch_elements = step_case.options.reuse_distance = 1'000'000;
    const Program program = program_of(step_case);
    CHECK(lists_of(program) == plain);
    for (const Instr& instr : program.instrs)
      if (is_of_a_list(instr)) CHECK(instr.writes.size() == 1);
  }
}

TEST_CASE("parameters are gathered concurrently with the collectives of tensor ranks") {
  const Program program = program_of(two_axes(3));
  const auto before = happens_before(program);
  size_t beside = 0;
  const std::vector<size_t> gathers = positions_of(program, InstrKind::kAllGather);
  size_t parameters = 0;
  for (const size_t gather : gathers) {
    if (!gathers_parameters(program, program.instrs[gather])) continue;
    ++parameters;
    bool found = false;
    for (size_t i = 0; i < program.instrs.size(); ++i)
      found |=
          is_of_a_list(program.instrs[i]) && before[std::max(i, gather)][std::min(i, gather)] == 0;
    beside += found ? 1 : 0;
  }
  CHECK(parameters > 10);
  CHECK(beside + 1 >= parameters);  // the first gather comes before all layers
}

}  // namespace
}  // namespace ftrun
