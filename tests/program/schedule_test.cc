#include "program/schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "models.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace fixtures;

constexpr ScheduleKind kKinds[] = {ScheduleKind::kGpipe, ScheduleKind::k1F1B, ScheduleKind::kZbH1};

std::string text(ScheduleKind kind, int stages, int stage, int32_t micro_batches) {
  return schedule_text(make_schedule(kind, stages, stage, micro_batches));
}

TEST_CASE("schedules are those of their papers") {
  CHECK(text(ScheduleKind::kGpipe, 4, 1, 3) == "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2");
  CHECK(text(ScheduleKind::k1F1B, 4, 0, 4) == "F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3");
  CHECK(text(ScheduleKind::k1F1B, 4, 2, 5) ==
        "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 F0.4 B0.3 B0.4");
  CHECK(text(ScheduleKind::k1F1B, 4, 3, 3) == "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2");
  CHECK(text(ScheduleKind::kZbH1, 4, 0, 5) ==
        "F0.0 F0.1 F0.2 F0.3 I0.0 W0.0 F0.4 I0.1 W0.1 I0.2 W0.2 I0.3 W0.3 I0.4 W0.4");
  CHECK(text(ScheduleKind::kZbH1, 4, 2, 8) ==
        "F0.0 F0.1 I0.0 F0.2 I0.1 F0.3 I0.2 W0.0 F0.4 I0.3 W0.1 F0.5 I0.4 W0.2 F0.6 I0.5 W0.3 F0.7 "
        "I0.6 W0.4 I0.7 W0.5 W0.6 W0.7");
  CHECK(text(ScheduleKind::kZbH1, 8, 6, 4) ==
        "F0.0 F0.1 I0.0 F0.2 I0.1 F0.3 I0.2 I0.3 W0.0 W0.1 W0.2 W0.3");
}

TEST_CASE("a stage runs each phase of each micro-batch once, in their order") {
  for (const ScheduleKind kind : kKinds)
    for (int stages = 1; stages < 6; ++stages)
      for (int stage = 0; stage < stages; ++stage)
        for (int32_t count = 1; count < 9; ++count) {
          INFO(text(kind, stages, stage, count));
          std::map<Phase, std::vector<int32_t>> by_phase;
          std::set<std::pair<Phase, int32_t>> done;
          for (const ScheduleAction& action : make_schedule(kind, stages, stage, count)) {
            by_phase[action.phase].push_back(action.micro_batch);
            REQUIRE(done.insert({action.phase, action.micro_batch}).second);
            const Phase needs =
                action.phase == Phase::kWeightGrad ? Phase::kInputGrad : Phase::kForward;
            if (action.phase != Phase::kForward) REQUIRE(done.contains({needs, action.micro_batch}));
          }
          for (const auto& [phase, micro_batches] : by_phase) {
            REQUIRE(std::is_sorted(micro_batches.begin(), micro_batches.end()));
            REQUIRE(micro_batches.size() == static_cast<size_t>(count));
          }
          REQUIRE(by_phase.size() == (kind == ScheduleKind::kZbH1 ? 3 : 2));
        }
}

/// Compute instructions of layers, as "F" for all of a forward pass and so on.
std::string passes_of(const Program& program) {
  std::vector<std::string> passes;
  for (const Instr& instr : program.instrs) {
    if (!instr.runs_list()) continue;
    const std::string pass = cat(instr_name(instr.kind), " ", instr.micro_batch);
    if (passes.empty() || passes.back() != pass) passes.push_back(pass);
  }
  return join(passes, ", ");
}

TEST_CASE("a step runs the actions of its schedule") {
  const Built built = build(small_config(2, false));
  const auto of = [&](ScheduleKind kind) {
    return passes_of(built.step({.micro_batches = 2, .schedule = kind}));
  };
  CHECK(of(ScheduleKind::k1F1B) == "forward 0, backward 0, forward 1, backward 1");
  CHECK(of(ScheduleKind::kGpipe) == "forward 0, forward 1, backward 0, backward 1");
  CHECK(of(ScheduleKind::kZbH1) ==
        "forward 0, input_grad 0, weight_grad 0, forward 1, input_grad 1, weight_grad 1");
}

TEST_CASE("weight gradients that wait find what input gradients left them, each value once") {
  const Built built = build(small_config(3, false));
  const Program program = built.step({.schedule = ScheduleKind::kZbH1});
  INFO(program_text(program));
  std::map<std::pair<int32_t, ValueId>, std::vector<InstrKind>> touched;
  size_t deferred = 0;
  for (const Instr& instr : program.instrs) {
    if (!instr.runs_list()) continue;
    const LayerGraph& graph = built.model.graphs[static_cast<size_t>(instr.ops().graph)];
    for (const Binding& binding : instr.ops().bindings)
      if (graph.at(binding.value).role == ValueRole::kDeferred)
        touched[{instr.layer, binding.value}].push_back(instr.kind);
  }
  for (const auto& [value, kinds] : touched)
    REQUIRE(kinds == std::vector<InstrKind>{InstrKind::kInputGrad, InstrKind::kWeightGrad});
  for (const Buffer& buffer : program.buffers) deferred += buffer.name.starts_with("deferred.");
  CHECK(deferred == 3);
  CHECK(touched.size() > 3 * 4);
}

}  // namespace
}  // namespace ftrun
