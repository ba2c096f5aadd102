#include "axes/pipeline/schedule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "axes/pipeline/pipeline_layout.h"
#include "base/text.h"
#include "models.h"
#include "schedule_goldens.h"
#include "schedule_text.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

std::string stage_text(PipelineSchedule kind, int stages, int stage, int32_t micro_batches,
                       int chunks = 1) {
  return schedule_text(make_schedule(kind, stages, chunks, stage, micro_batches));
}

TEST_CASE("schedules agree with their papers") {
  CHECK(stage_text(PipelineSchedule::kGpipe, 4, 1, 3) == "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2");
  CHECK(stage_text(PipelineSchedule::k1F1B, 4, 0, 4) == "F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3");
  CHECK(stage_text(PipelineSchedule::k1F1B, 4, 2, 5) ==
        "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 F0.4 B0.3 B0.4");
  CHECK(stage_text(PipelineSchedule::k1F1B, 4, 3, 3) == "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2");
  CHECK(stage_text(PipelineSchedule::kInterleaved, 2, 1, 4, 2) ==
        "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3");
  CHECK(stage_text(PipelineSchedule::kZbH1, 4, 0, 5) ==
        "F0.0 F0.1 F0.2 F0.3 I0.0 W0.0 F0.4 I0.1 W0.1 I0.2 W0.2 I0.3 W0.3 I0.4 W0.4");
  CHECK(stage_text(PipelineSchedule::kZbH1, 4, 2, 8) ==
        "F0.0 F0.1 I0.0 F0.2 I0.1 F0.3 I0.2 W0.0 F0.4 I0.3 W0.1 F0.5 I0.4 W0.2 F0.6 I0.5 W0.3 F0.7 "
        "I0.6 W0.4 I0.7 W0.5 W0.6 W0.7");
  CHECK(stage_text(PipelineSchedule::kZbH1, 8, 6, 4) ==
        "F0.0 F0.1 I0.0 F0.2 I0.1 F0.3 I0.2 I0.3 W0.0 W0.1 W0.2 W0.3");
  CHECK(stage_text(PipelineSchedule::kZbV, 2, 1, 4, 2) ==
        "F0.0 F1.0 F0.1 F1.1 I1.0 W1.0 F0.2 I0.0 W0.0 F1.2 I1.1 W1.1 F0.3 I0.1 W0.1 F1.3 I1.2 W1.2 "
        "I0.2 I1.3 I0.3 W0.2 W1.3 W0.3");
}

TEST_CASE("schedules agree with those of other systems, action by action", "[.needs-reference]") {
  std::map<PipelineSchedule, int> compared;
  for (const ScheduleGolden& golden : schedule_goldens()) {
    INFO(golden_text(golden));
    REQUIRE(golden.lists.size() == static_cast<size_t>(golden.stages));
    for (int stage = 0; stage < golden.stages; ++stage)
      REQUIRE(stage_text(golden.kind, golden.stages, stage, golden.micro_batches, golden.chunks) ==
              golden.lists[static_cast<size_t>(stage)]);
    ++compared[golden.kind];
  }
  CHECK(compared == std::map<PipelineSchedule, int>{{PipelineSchedule::kGpipe, 16},
                                                    {PipelineSchedule::k1F1B, 16},
                                                    {PipelineSchedule::kInterleaved, 45},
                                                    {PipelineSchedule::kZbH1, 16},
                                                    {PipelineSchedule::kZbV, 16}});
}

/// Calls `check` for every kind of schedule, up to 6 stages, 1 to 3 chunks if the kind allows a
/// choice, and up to 13 micro-batches, which may be fewer than stages.
template <typename Check>
void for_all_schedules(const Check& check) {
  for (const PipelineScheduleTraits& traits : kPipelineScheduleTraits)
    for (int stages = 1; stages < 7; ++stages)
      for (int chunks = 1; chunks < 4; ++chunks)
        for (int32_t count = 1; count < 14; ++count) {
          const bool has = traits.chunks_configurable || traits.default_chunks == chunks;
          if (has && accepts_micro_batches(traits.schedule, stages, count))
            check(traits.schedule, stages, chunks, count);
        }
}

TEST_CASE("a stage runs each phase of each micro-batch once, in their order") {
  for_all_schedules([](PipelineSchedule kind, int stages, int chunks, int32_t count) {
    for (int stage = 0; stage < stages; ++stage) {
      INFO(stage_text(kind, stages, stage, count, chunks));
      std::map<std::pair<Phase, int32_t>, std::vector<int32_t>> by_phase;  // key: (phase, chunk)
      for (const ScheduleAction& action : make_schedule(kind, stages, chunks, stage, count))
        by_phase[{action.phase, action.chunk}].push_back(action.micro_batch);
      std::vector<int32_t> all(static_cast<size_t>(count));
      std::iota(all.begin(), all.end(), 0);
      for (const auto& [phase, micro_batches] : by_phase) REQUIRE(micro_batches == all);
      REQUIRE(by_phase.size() ==
              static_cast<size_t>(chunks) * (traits_of(kind).splits_backward ? 3 : 2));
    }
  });
}

/// Returns the maximum number of micro-batches, over all chunks, whose activations a stage keeps at
/// once.
int max_kept_micro_batches(const std::vector<ScheduleAction>& actions) {
  int now = 0, peak = 0;
  for (const ScheduleAction& action : actions) {
    now += action.phase == Phase::kForward ? 1 : 0;
    now -= action.phase == Phase::kBackward || action.phase == Phase::kWeightGrad ? 1 : 0;
    peak = std::max(peak, now);
  }
  return peak;
}

TEST_CASE("the traits of schedules agree with their actions") {
  for (const PipelineScheduleTraits& traits : kPipelineScheduleTraits) {
    INFO(traits.name);
    CHECK(&traits == &traits_of(traits.schedule));
    bool refuses_a_count = false;
    for (int32_t count = 1; count < 14; ++count)
      refuses_a_count = refuses_a_count || !accepts_micro_batches(traits.schedule, 4, count);
    CHECK(refuses_a_count == traits.runs_in_rounds);
    for (int stage = 0; stage < 4; ++stage) {
      const auto kept = [&](int32_t count) {
        return max_kept_micro_batches(
            make_schedule(traits.schedule, 4, traits.default_chunks, stage, count));
      };
      CHECK((kept(160) > kept(16)) == traits.keeps_all_micro_batches);
    }
  }
}

/// Done holds what has run: phase, model chunk, and micro-batch. Whole backward passes count as
/// input gradients.
using Done = std::set<std::tuple<Phase, int, int32_t>>;

bool can_run(const Done& done, Phase phase, int model_chunk, int model_chunks,
             int32_t micro_batch) {
  if (phase == Phase::kForward)
    return model_chunk == 0 || done.contains({Phase::kForward, model_chunk - 1, micro_batch});
  if (phase == Phase::kWeightGrad)
    return done.contains({Phase::kInputGrad, model_chunk, micro_batch});
  return done.contains({Phase::kForward, model_chunk, micro_batch}) &&
         (model_chunk + 1 == model_chunks ||
          done.contains({Phase::kInputGrad, model_chunk + 1, micro_batch}));
}

/// Runs the lists of all stages as far as possible; returns the number of actions that ran.
size_t run_all(PipelineSchedule kind, int stages, int chunks, int32_t count) {
  const StageActions lists = make_schedules(kind, stages, chunks, count);
  std::vector<int32_t> cuts(static_cast<size_t>(stages * chunks) + 1);
  std::iota(cuts.begin(), cuts.end(), 0);
  const PipelineLayout layout(stages, chunks, traits_of(kind).placement, cuts);
  std::vector<size_t> at(lists.size());
  Done done;
  size_t ran = 0, before = 1;
  while (ran != before) {
    before = ran;
    for (int stage = 0; stage < stages; ++stage) {
      const auto s = static_cast<size_t>(stage);
      for (; at[s] < lists[s].size(); ++at[s], ++ran) {
        const ScheduleAction& action = lists[s][at[s]];
        const int model_chunk = layout.model_chunk_of(stage, action.chunk);
        if (!can_run(done, action.phase, model_chunk, layout.model_chunks(), action.micro_batch))
          break;
        done.insert({action.phase == Phase::kBackward ? Phase::kInputGrad : action.phase,
                     model_chunk, action.micro_batch});
      }
    }
  }
  return ran;
}

TEST_CASE("a pipeline that runs a schedule reaches its end") {
  size_t schedules = 0;
  for_all_schedules([&](PipelineSchedule kind, int stages, int chunks, int32_t count) {
    INFO(static_cast<int>(kind) << ", stages " << stages << ", chunks " << chunks << ", " << count);
    size_t all = 0;
    for (int stage = 0; stage < stages; ++stage)
      all += make_schedule(kind, stages, chunks, stage, count).size();
    REQUIRE(run_all(kind, stages, chunks, count) == all);
    ++schedules;
  });
  CHECK(schedules > 6 * 13 * 5);
}

TEST_CASE("interleaved schedules need rounds of equal size") {
  CHECK(accepts_micro_batches(PipelineSchedule::kInterleaved, 4, 8));
  CHECK(accepts_micro_batches(PipelineSchedule::kInterleaved, 4, 3));
  CHECK(accepts_micro_batches(PipelineSchedule::kInterleaved, 4, 10));  // two rounds of 5
  CHECK_FALSE(accepts_micro_batches(PipelineSchedule::kInterleaved, 4, 9));
  CHECK(accepts_micro_batches(PipelineSchedule::k1F1B, 4, 9));
  CHECK_THROWS(make_schedule(PipelineSchedule::kInterleaved, 4, 2, 0, 9));
  CHECK_THROWS(make_schedule(PipelineSchedule::kZbV, 4, 1, 0, 8));
  CHECK_THROWS(make_schedule(PipelineSchedule::k1F1B, 4, 2, 0, 8));
}

/// Returns the passes of a program's compute instructions: "F" for all of a forward pass, and so
/// on.
std::string passes_of(const Program& program) {
  std::vector<std::string> passes;
  for (const Instr& instr : program.instrs) {
    if (!instr.runs_ops()) continue;
    const std::string pass = cat(instr_name(instr.kind), " ", instr.micro_batch);
    if (passes.empty() || passes.back() != pass) passes.push_back(pass);
  }
  return join(passes, ", ");
}

TEST_CASE("a step runs the actions of its schedule") {
  const PartitionedModel built = build(small_config(2, false));
  const auto of = [&](PipelineSchedule kind) {
    return passes_of(built.step({.micro_batches = 2, .schedule = kind}));
  };
  CHECK(of(PipelineSchedule::k1F1B) == "forward 0, backward 0, forward 1, backward 1");
  CHECK(of(PipelineSchedule::kGpipe) == "forward 0, forward 1, backward 0, backward 1");
  CHECK(of(PipelineSchedule::kZbH1) ==
        "forward 0, input_grad 0, weight_grad 0, forward 1, input_grad 1, weight_grad 1");
}

TEST_CASE("deferred weight gradients find what input gradients saved for them, each value once") {
  const PartitionedModel built = build(small_config(3, false));
  const Program program = built.step({.schedule = PipelineSchedule::kZbH1});
  INFO(program_text(program));
  std::map<std::pair<int32_t, ValueId>, std::vector<InstrKind>> touched;
  size_t deferred = 0;
  for (const Instr& instr : program.instrs) {
    if (!instr.runs_ops()) continue;
    const LayerGraph& graph = built.model.graphs[static_cast<size_t>(instr.ops().graph)];
    for (const Binding& binding : instr.ops().bindings)
      if (graph.at(binding.value).role == ValueRole::kDeferred)
        touched[{instr.layer, binding.value}].push_back(instr.kind);
  }
  for (const auto& [value, kinds] : touched)
    REQUIRE(kinds == std::vector<InstrKind>{InstrKind::kInputGrad, InstrKind::kWeightGrad});
  for (const Buffer& buffer : program.buffers) deferred += buffer.name.starts_with("deferred.");
  CHECK(deferred == 3);
  // No value is kept for weight gradients that do not read it.
  const auto early = [&](const BufferRange& range) {
    return program.buffers[static_cast<size_t>(range.buffer)].name.starts_with(
        "saved_for_input_grad.");
  };
  std::map<InstrKind, size_t> reads;
  for (const Instr& instr : program.instrs)
    reads[instr.kind] +=
        static_cast<size_t>(std::count_if(instr.reads.begin(), instr.reads.end(), early));
  CHECK(reads[InstrKind::kInputGrad] >= 3);
  CHECK(reads[InstrKind::kWeightGrad] == 0);
  CHECK(touched.size() == 3 * 4);
}

}  // namespace
}  // namespace ftrun
