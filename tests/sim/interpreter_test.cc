#include "mutants.h"
#include "outcome.h"

#include <algorithm>
#include <functional>

#include "program/passes.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

std::vector<std::string> faults_of(const std::vector<StepProgram>& steps) {
  std::vector<const Program*> programs;
  for (const StepProgram& step : steps) programs.push_back(&step.program);
  return check_programs(programs);
}

/// Runs a step case, requires that it leaves the same results as `oracle`, and returns them.
Outcome require_same_results(const StepCase& oracle, const StepCase& step_case,
                             const std::vector<StepProgram>& steps, std::mt19937_64& random) {
  const Outcome expected = run_steps(oracle, oracle.steps(), random);
  REQUIRE(expected.fault == "");
  const Outcome actual = run_steps(step_case, steps, random);
  REQUIRE(actual.fault == "");
  REQUIRE(difference(actual, expected) == "");
  REQUIRE(actual.loss == expected.loss);
  return actual;
}

/// Checks a step case for faults, and requires that it leaves the results of its plain program.
/// Returns the programs of its ranks.
std::vector<StepProgram> require_plain_results(const StepCase& step_case, std::mt19937_64& random) {
  std::vector<StepProgram> steps = step_case.steps();
  std::string texts;
  for (const StepProgram& step : steps) texts += program_text(step.program);
  INFO(texts);
  REQUIRE(faults_of(steps) == std::vector<std::string>{});
  require_same_results(plain(step_case), step_case, steps, random);
  return steps;
}

TEST_CASE("any sharding, tiers, buckets and recompute leave the weights of the plain program",
          "[long]") {
  std::mt19937_64 random(1001);
  for (int round = 0; round < 150; ++round) {
    const StepCase step_case = random_step_case(random);
    INFO("round " << round << ": " << step_case.text());
    const std::vector<StepProgram> steps = step_case.steps();
    const std::vector<std::string> faults = faults_of(steps);
    INFO(program_text(steps.back().program));
    REQUIRE(faults == std::vector<std::string>{});
    require_same_results(plain(step_case), step_case, steps, random);
  }
}

TEST_CASE("each token of ranks that share rows counts once in the weights") {
  std::mt19937_64 random(1013);
  for (const int stage : {0, 1, 2, 3})
    for (const Mesh& mesh : {Mesh{.shards = 4, .context = 2},
                             Mesh{.shards = 2, .replicas = 2, .tensor = 2, .context = 2}}) {
      StepCase step_case = small_step_case(small_config(1, true), mesh);
      step_case.options.state.zero_stage = stage;
      INFO(step_case.text());
      require_plain_results(step_case, random);
    }
}

TEST_CASE("pipelines leave the weights of the plain program of one stage", "[long]") {
  std::mt19937_64 random(1011);
  for (int round = 0; round < 80; ++round) {
    const StepCase step_case = random_pipeline_case(random);
    INFO("round " << round << ": " << step_case.text());
    require_plain_results(step_case, random);
  }
}

TEST_CASE("a block of 8-bit states has one scale, whichever ranks hold parts of it", "[long]") {
  std::mt19937_64 random(1013);
  size_t exchanged = 0, from_host = 0, aligned = 0;
  for (int round = 0; round < 40; ++round) {
    const StepCase step_case = with_8bit_states(
        round % 4 == 0 ? random_pipeline_case(random) : random_step_case(random), random);
    INFO("round " << round << ": " << step_case.text());
    const std::vector<StepProgram> steps = require_plain_results(step_case, random);
    for (const Instr& instr : steps.front().program.instrs) {
      if (instr.communicates() && instr.communication().is_max) ++exchanged;
      if (instr.kind != InstrKind::kComputeScales && instr.kind != InstrKind::kUpdate) continue;
      const bool on_host = steps.front().program.at(instr.writes[0].buffer).tier == Tier::kHost;
      if (instr.kind == InstrKind::kComputeScales && on_host) ++from_host;
      if (instr.kind == InstrKind::kUpdate && !instr.update().blocks) ++aligned;
    }
  }
  REQUIRE(exchanged > 10);
  REQUIRE(from_host > 10);
  REQUIRE(aligned > 40);
}

TEST_CASE("with frozen units, the others train as in the plain program with the same frozen units",
          "[long]") {
  std::mt19937_64 random(1003);
  size_t frozen = 0;
  size_t shared = 0;
  for (int round = 0; round < 100; ++round) {
    StepCase step_case = round % 4 == 0 ? with_frozen_below(random_step_case(random), random)
                                        : with_frozen(random_step_case(random), random,
                                                      pick<uint64_t>(random, {10, 50, 90, 100}));
    const StepCase oracle = plain(step_case);
    step_case.options.state.max_gradient_norm_slots = pick<int64_t>(random, {1, 1 << 17});
    INFO("round " << round << ": " << step_case.text());
    const std::vector<StepProgram> steps = step_case.steps();
    INFO(program_text(steps.back().program));
    REQUIRE(faults_of(steps) == std::vector<std::string>{});
    const Outcome actual = require_same_results(oracle, step_case, steps, random);
    const Outcome untrained = run_steps(oracle, oracle.steps(), random, {false});
    for (int t = 0; t < step_case.mesh.tensor; ++t)
      for (const Unit& unit : step_case.built.partition.units) {
        if (unit.trainable) continue;
        ++frozen;
        const auto at = static_cast<size_t>(t) * step_case.built.partition.units.size() +
                        static_cast<size_t>(unit.id);
        REQUIRE(actual.states[0][at] == untrained.states[0][at]);
      }
    for (const Instr& instr : steps[0].program.instrs)
      if (instr.kind == InstrKind::kGradientNorm && step_case.mesh.ranks() > 1)
        shared += std::get<GradientNormSlots>(instr.detail).ranks == 1 ? 1 : 0;
  }
  REQUIRE(frozen > 100);
  REQUIRE(shared > 10);
}

TEST_CASE(
    "in pipelines with frozen first layers, nobody sends or waits for gradients that nobody "
    "needs",
    "[long]") {
  std::mt19937_64 random(1013);
  size_t without_backward = 0;
  for (int round = 0; round < 40; ++round) {
    const StepCase step_case = with_frozen_below(random_pipeline_case(random), random);
    INFO("round " << round << ": " << step_case.text() << ", trained from layer "
                  << step_case.built.model.first_trained);
    const std::vector<StepProgram> steps = require_plain_results(step_case, random);
    for (const StepProgram& step : steps) {
      for (const Instr& instr : step.program.instrs)
        if (instr.runs_ops() && instr.kind != InstrKind::kForward)
          REQUIRE(instr.layer >= step_case.built.model.first_trained);
      without_backward += positions_of(step.program, InstrKind::kBackward).empty() &&
                          positions_of(step.program, InstrKind::kWeightGrad).empty();
    }
  }
  REQUIRE(without_backward > 10);
}

/// Returns a step case with a small model. With `hidden` 64 each of two ranks holds a part of each
/// block; with 16 only rank 0 does.
StepCase small_step_case(int stage, int64_t hidden, Mesh mesh = {2, 1}) {
  ModelConfig config = small_config(2, true);
  config.hidden = hidden;
  config.feed_forward = 100;
  StepCase step_case{build(config), {}, mesh, config};
  step_case.built.partition =
      build_units(step_case.built.model, UnitGranularity::kLayer, {64, INT64_MAX});
  step_case.options.micro_batches = 2;
  step_case.options.bucket_elements = 1;
  step_case.options.state.zero_stage = stage;
  return step_case;
}

/// Returns the position of the n-th instruction of a kind.
size_t nth_instr(const Program& program, InstrKind kind, size_t n) {
  return positions_of(program, kind).at(n);
}

TEST_CASE("the interpreter notices wrong sums, offsets and flags, and what is left out") {
  std::mt19937_64 random(1002);
  using Change = std::function<void(Program&)>;
  const auto at = [](InstrKind kind, size_t n, std::function<void(Instr&)> change) -> Change {
    return [=](Program& p) { change(p.instrs[nth_instr(p, kind, n)]); };
  };
  const auto flip = [](Instr& instr) { instr.ops().accumulate = !instr.ops().accumulate; };
  const auto back = [](Instr& instr) { instr.writes[0].offset = 0; };
  const auto nothing = [](Instr& instr) {
    instr.kind = InstrKind::kGradientNorm;
    instr.detail = GradientNormSlots{};
    instr.reads.clear();
    instr.writes.clear();
  };
  const std::vector<std::pair<const char*, Change>> changes{
      {"a list that overwrites", at(InstrKind::kBackward, 3, flip)},
      {"a list that adds", at(InstrKind::kBackward, 0, flip)},
      {"a part in another place", at(InstrKind::kReduceScatter, 1, back)},
      {"a follower left out", at(InstrKind::kAccumulate, 1, nothing)},
      {"padding that is not cleared", at(InstrKind::kClear, 0, nothing)},
      {"an update left out", at(InstrKind::kUpdate, 1, nothing)},
      {"another element",
       at(InstrKind::kUpdate, 1, [](Instr& i) { i.update().first_element += 1; })},
      {"another decay",
       at(InstrKind::kUpdate, 1, [](Instr& i) { i.update().decay = !i.update().decay; })},
      {"an update whatever the decision",
       at(InstrKind::kUpdate, 1, [](Instr& i) { i.if_finite = false; })},
  };
  const StepCase step_case = small_step_case(2, 64);
  const std::vector<StepProgram> good = step_case.steps();
  const Outcome expected = run_steps(step_case, good, random);
  REQUIRE(expected.fault == "");
  REQUIRE_FALSE(is_noticed(step_case, good, expected, random));
  for (const auto& [what, change] : changes) {
    std::vector<StepProgram> steps = good;
    change(steps[1].program);
    INFO(what);
    CHECK(is_noticed(step_case, steps, expected, random));
  }
}

/// Makes collectives that are inserted after the first list of a program and run over all of its
/// ranks. They work on the list's output `hidden`; `other` is a buffer of the same size, and `come`
/// is a buffer for received counts.
using MakeExchanges = std::function<std::vector<Instr>(
    const Program&, const BufferRange& hidden, const BufferRange& other, const BufferRange& come)>;
StepProgram with_exchanges(StepProgram step, const MakeExchanges& make) {
  Program& program = step.program;
  const BufferId hidden = buffer_named(program, "hidden.0.0");
  const BufferId other = program.add(
      {.name = "other", .bytes = program.at(hidden).bytes, .format = program.at(hidden).format});
  const BufferId come = program.add({.name = "come",
                                     .bytes = 4 * program.groups[0].place.count,
                                     .format = {.dtype = DType::kI32}});
  const std::vector<Instr> made = make(program, program.full_range(hidden),
                                       program.full_range(other), program.full_range(come));
  const size_t at = nth_instr(program, InstrKind::kForward, 0) + 1;
  for (Instr& instr : program.instrs)
    for (InstrId& wait : instr.waits)
      wait += wait >= static_cast<InstrId>(at) ? static_cast<InstrId>(made.size()) : 0;
  program.instrs.insert(program.instrs.begin() + static_cast<std::ptrdiff_t>(at), made.begin(),
                        made.end());
  program = assign_arena_offsets(add_waits(std::move(program), true));
  return step;
}

std::vector<StepProgram> all_with_exchanges(const StepCase& step_case, const MakeExchanges& make) {
  std::vector<StepProgram> steps;
  for (const StepProgram& step : step_case.steps()) steps.push_back(with_exchanges(step, make));
  REQUIRE(faults_of(steps) == std::vector<std::string>{});
  return steps;
}

/// Returns collectives that shift `hidden` by `there`, and then back by `back`.
MakeExchanges shift_exchanges(int there, int back) {
  return [=](const Program&, const BufferRange& hidden, const BufferRange& other,
             const BufferRange&) {
    return std::vector<Instr>{
        make_collective(InstrKind::kShift, {.group = 0, .shift = there}, hidden, other),
        make_collective(InstrKind::kShift, {.group = 0, .shift = back}, other, hidden)};
  };
}

TEST_CASE(
    "data that is shifted back, or exchanged twice, trains the same weights; data that ends "
    "elsewhere does not") {
  std::mt19937_64 random(1021);
  const StepCase step_case = small_step_case(1, 64, {4, 1});
  const Outcome expected = run_steps(step_case, step_case.steps(), random);
  REQUIRE(expected.fault == "");
  const MakeExchanges twice = [](const Program&, const BufferRange& hidden,
                                 const BufferRange& other, const BufferRange&) {
    return std::vector<Instr>{make_collective(InstrKind::kAllToAll, {.group = 0}, hidden, other),
                              make_collective(InstrKind::kAllToAll, {.group = 0}, other, hidden)};
  };
  const MakeExchanges once = [](const Program& program, const BufferRange& hidden,
                                const BufferRange& other, const BufferRange&) {
    return std::vector<Instr>{make_collective(InstrKind::kAllToAll, {.group = 0}, hidden, other),
                              make_copy(program, other, hidden)};
  };
  for (int there = 1; there < 4; ++there)
    for (int back = 1; back < 4; ++back)
      CHECK(differs(run_steps(step_case,
                              all_with_exchanges(step_case, shift_exchanges(there, back)), random),
                    expected) == ((there + back) % 4 != 0));
  CHECK_FALSE(
      differs(run_steps(step_case, all_with_exchanges(step_case, twice), random), expected));
  CHECK(differs(run_steps(step_case, all_with_exchanges(step_case, once), random), expected));
}

TEST_CASE("any change of an exchange is noticed, by the checker or in the results") {
  std::mt19937_64 random(1022);
  const StepCase step_case = small_step_case(1, 64, {4, 1});
  for (const MakeExchanges& make : {shift_exchanges(1, 3), shift_exchanges(2, 2)}) {
    const std::vector<StepProgram> good = all_with_exchanges(step_case, make);
    const Outcome expected = run_steps(step_case, good, random);
    const size_t first = nth_instr(good[0].program, InstrKind::kShift, 0);
    const std::vector<std::pair<const char*, std::function<void(Program&)>>> changes{
        {"left out", [&](Program& p) { p = without_instruction(p, first); }},
        {"twice", [&](Program& p) { p = with_instruction_twice(p, first); }},
        {"by another place",
         [&](Program& p) {
           p.instrs[first].communication().shift = p.instrs[first].communication().shift % 3 + 1;
         }},
        {"as an all-to-all", [&](Program& p) { p.instrs[first].kind = InstrKind::kAllToAll; }},
        {"as a gather", [&](Program& p) { p.instrs[first].kind = InstrKind::kAllGather; }},
        {"of a half",
         [&](Program& p) {
           p.instrs[first].reads[0].bytes = p.instrs[first].writes[0].bytes /= 2;
         }},
        {"swapped", [&](Program& p) { std::swap(p.instrs[first], p.instrs[first + 1]); }},
        {"from where it goes",
         [&](Program& p) { std::swap(p.instrs[first].reads, p.instrs[first].writes); }},
        {"on the compute lane", [&](Program& p) { p.instrs[first].lane = Lane::kCompute; }},
        {"as other elements",
         [&](Program& p) { p.instrs[first].communication().dtype = DType::kBF16; }},
        {"without its wait", [&](Program& p) { p.instrs[first].waits.clear(); }},
    };
    for (const auto& [what, change] : changes)
      for (const bool all : {false, true}) {
        // On all ranks alike, a repeated shift gives the same result, and bytes move the same way
        // whatever dtype they are called.
        if (all && (what == std::string("twice") || what == std::string("as other elements")))
          continue;
        std::vector<StepProgram> steps = good;
        for (size_t r = all ? 0 : 3; r < steps.size(); ++r) change(steps[r].program);
        INFO(what << (all ? " on all ranks" : " on the last rank"));
        CHECK((!faults_of(steps).empty() || is_noticed(step_case, steps, expected, random)));
      }
  }
}

TEST_CASE(
    "received counted rows depend on what all ranks send, and not on the order in which lanes "
    "run") {
  std::mt19937_64 random(1023);
  const StepCase step_case = small_step_case(1, 64, {4, 1});
  const auto counted = [](const char* counts) -> MakeExchanges {
    return [counts](const Program& program, const BufferRange& hidden, const BufferRange& other,
                    const BufferRange& come) {
      Instr move = make_collective(InstrKind::kCountedAllToAll, {.group = 0, .row_elements = 64},
                                   hidden, other);
      move.reads.push_back(program.full_range(buffer_named(program, counts)));
      move.writes.push_back(come);
      return std::vector<Instr>{move, make_copy(program, other, hidden)};
    };
  };
  const std::vector<StepProgram> steps = all_with_exchanges(step_case, counted("tokens.0"));
  const Outcome actual = run_steps(step_case, steps, random);
  REQUIRE(actual.fault == "");
  for (int again = 0; again < 5; ++again)
    REQUIRE_FALSE(differs(run_steps(step_case, steps, random), actual));
  CHECK(differs(run_steps(step_case, all_with_exchanges(step_case, counted("labels.0")), random),
                actual));
  CHECK(differs(run_steps(step_case, step_case.steps(), random), actual));
}

TEST_CASE("the interpreter notices missing waits, as the checker does", "[long]") {
  std::mt19937_64 random(1003);
  for (const int stage : {0, 1, 2, 3}) {
    StepCase step_case = small_step_case(stage, 16);
    if (stage > 0) step_case.options.state.optimizer_tier = Tier::kDisk;
    const std::vector<StepProgram> good = step_case.steps();
    const Outcome expected = run_steps(step_case, good, random);
    REQUIRE(expected.fault == "");
    size_t noticed = 0;
    size_t dropped = 0;
    INFO("stage " << stage << "\n" << program_text(good[0].program));
    for (size_t i = 0; i < good[0].program.instrs.size(); ++i) {
      if (good[0].program.instrs[i].waits.empty()) continue;
      std::vector<StepProgram> steps = good;
      steps[0].program.instrs[i].waits.clear();
      INFO("instruction " << i);
      const bool harmless = faults_of(steps).empty();
      const bool is_visible = is_noticed(step_case, steps, expected, random);
      // A program that passes the checker must never give wrong results. One that it refuses nearly
      // always does, in some interleaving.
      if (harmless) REQUIRE_FALSE(is_visible);
      dropped += harmless ? 0 : 1;
      noticed += is_visible ? 1 : 0;
    }
    CHECK(dropped > 5);
    CHECK(noticed * 10 >= dropped * 8);
  }
}

TEST_CASE("evaluation finds the same loss wherever parameters are stored") {
  std::mt19937_64 random(1004);
  for (int round = 0; round < 40; ++round) {
    StepCase step_case = random_step_case(random);
    const auto loss_of = [&](const StepCase& c) {
      StepCase evaluate = c;
      evaluate.built.model = c.model_for(GraphMode::kEvaluate);
      std::vector<StepProgram> steps;
      for (int r = 0; r < c.mesh.ranks(); ++r)
        steps.push_back(build_evaluation_step(evaluate.built.model, evaluate.built.partition,
                                              c.options_of_rank(r)));
      REQUIRE(faults_of(steps) == std::vector<std::string>{});
      Interpreter interpreter(evaluate.built.model, evaluate.built.partition, std::move(steps),
                              c.mesh.grid());
      interpreter.load();
      REQUIRE(interpreter.run(random) == "");
      return interpreter.collect_loss(0);
    };
    INFO(step_case.text());
    const std::vector<uint64_t> loss = loss_of(step_case);
    REQUIRE(loss == loss_of(plain(step_case)));
    REQUIRE(loss[2] == static_cast<uint64_t>(step_case.mesh.ranks()));
  }
}

}  // namespace
}  // namespace ftrun
