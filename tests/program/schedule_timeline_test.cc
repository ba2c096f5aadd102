#include "axes/pipeline/schedule_timeline.h"

#include <algorithm>
#include <random>

#include "schedule_goldens.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

ScheduleTimeline timeline(PipelineSchedule kind, int stages, int chunks, int32_t micro_batches,
                          const PhaseSeconds& of_chunk = {1, 2, 1, 1}, double transfer = 0) {
  const std::vector<PhaseSeconds> by_chunk(static_cast<size_t>(stages * chunks), of_chunk);
  return simulate_timeline(make_schedules(kind, stages, chunks, micro_batches),
                           traits_of(kind).placement, by_chunk, transfer);
}

/// Returns the seconds from the start of the stage's first action to the end of its last.
double own_span(const StageTimeline& stage) {
  return stage.actions.empty()
             ? 0
             : stage.actions.back().end_seconds - stage.actions.front().start_seconds;
}

TEST_CASE("timelines of equal chunks agree with another simulator", "[.needs-reference]") {
  size_t compared = 0;
  for (const ScheduleGolden& golden : schedule_goldens()) {
    INFO(golden_text(golden));
    const auto lists =
        make_schedules(golden.kind, golden.stages, golden.chunks, golden.micro_batches);
    const ScheduleTimeline line =
        simulate_timeline(lists, traits_of(golden.kind).placement,
                          equal_chunk_seconds(golden.stages * golden.chunks));
    const double work = golden.run.at("work");
    REQUIRE(line.makespan_seconds == golden.run.at("makespan").get<double>());
    REQUIRE(line.makespan_seconds - work == golden.run.at("bubble").get<double>());
    double span = 0;
    for (size_t s = 0; s < lists.size(); ++s) {
      const double idle = golden.run.at("idle")[s];
      REQUIRE(line.stages[s].busy_seconds == work);
      REQUIRE(line.makespan_seconds - line.stages[s].busy_seconds == idle);
      REQUIRE(line.idle_share(static_cast<int>(s)) == Approx(idle / line.makespan_seconds));
      REQUIRE(max_in_flight(lists[s]) == golden.run.at("peak_in_flight")[s].get<int32_t>());
      REQUIRE(max_awaiting_input_grad(lists[s]) ==
              golden.run.at("peak_before_input_grad")[s].get<int32_t>());
      span = std::max(span, own_span(line.stages[s]));
    }
    REQUIRE(span - work == golden.run.at("bubble_own_span").get<double>());
    ++compared;
  }
  CHECK(compared == 109);
}

/// Returns the bubble by the papers' formulas, in seconds. `t` holds the times of a stage's whole
/// share of the model.
double bubble(PipelineSchedule kind, int stages, int chunks, const PhaseSeconds& t) {
  const double others = stages - 1;
  switch (kind) {
    case PipelineSchedule::kGpipe:
    case PipelineSchedule::k1F1B:
      return others * (t.forward + t.backward);
    case PipelineSchedule::kInterleaved:
      return others * (t.forward + t.backward) / chunks;
    case PipelineSchedule::kZbH1:
      return others * (t.forward + t.input_grad - t.weight_grad);
    case PipelineSchedule::kZbV:
      return others * (t.input_grad - t.weight_grad);
  }
  return -1;
}

/// Draws whole numbers with weight gradients <= forward <= input gradients, for which the formulas
/// of zero-bubble schedules hold.
PhaseSeconds random_seconds(std::mt19937_64& random) {
  const double weight = static_cast<double>(1 + random() % 9);
  const double forward = weight + static_cast<double>(random() % 5);
  const double input = forward + static_cast<double>(random() % 5);
  return {forward, input + weight, input, weight};
}

TEST_CASE("bubbles agree with the papers' formulas") {
  std::mt19937_64 random(4);
  for (const PipelineSchedule kind :
       {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved,
        PipelineSchedule::kZbH1, PipelineSchedule::kZbV})
    for (int i = 0; i < 200; ++i) {
      const int stages = static_cast<int>(1 + random() % 8);
      const int chunks =
          required_chunks(kind) > 0 ? required_chunks(kind) : static_cast<int>(2 + random() % 3);
      const auto count = static_cast<int32_t>(stages * (2 + random() % 4));
      const PhaseSeconds of_chunk = random_seconds(random);
      const PhaseSeconds share{of_chunk.forward * chunks, of_chunk.backward * chunks,
                               of_chunk.input_grad * chunks, of_chunk.weight_grad * chunks};
      const ScheduleTimeline line = timeline(kind, stages, chunks, count, of_chunk);
      const double work = count * (share.forward + share.backward);
      // The paper's formula for the V counts the time from each stage's own first to last action,
      // because no stage waits for others before the optimizer.
      double span = kind == PipelineSchedule::kZbV ? 0 : line.makespan_seconds;
      if (kind == PipelineSchedule::kZbV)
        for (const StageTimeline& stage : line.stages) span = std::max(span, own_span(stage));
      INFO(static_cast<int>(kind) << ", stages " << stages << ", chunks " << chunks << ", " << count
                                  << ": " << of_chunk.forward << " " << of_chunk.input_grad << " "
                                  << of_chunk.weight_grad);
      REQUIRE(span - work == bubble(kind, stages, chunks, share));
    }
}

TEST_CASE("stages keep as many micro-batches as the papers say") {
  const auto peak_of = [](PipelineSchedule kind, int stages, int chunks, int stage, int32_t count) {
    return max_in_flight(make_schedule(kind, stages, chunks, stage, count));
  };
  for (int stages = 1; stages < 9; ++stages)
    for (int stage = 0; stage < stages; ++stage)
      for (const int32_t count : {1, 2, stages, 2 * stages, 5 * stages}) {
        INFO("stage " << stage << " of " << stages << ", micro-batches " << count);
        REQUIRE(peak_of(PipelineSchedule::kGpipe, stages, 1, stage, count) == count);
        REQUIRE(peak_of(PipelineSchedule::k1F1B, stages, 1, stage, count) ==
                std::min(count, stages - stage));
        if (count < stages) continue;
        REQUIRE(peak_of(PipelineSchedule::kZbH1, stages, 1, stage, count) == stages);
        for (const int chunks : {2, 3}) {
          if (count % stages != 0) continue;
          REQUIRE(peak_of(PipelineSchedule::kInterleaved, stages, chunks, stage, count) ==
                  std::min(chunks * count, (chunks - 1) * stages + 2 * (stages - 1 - stage) + 1));
        }
        if (count >= 2 * stages)
          REQUIRE(peak_of(PipelineSchedule::kZbV, stages, 2, stage, count) == 2 * stages);
      }
}

TEST_CASE("stages wait for transfers between them, and need none within a stage") {
  // Two micro-batches pass down two stages and up again; nothing hides one transfer in each
  // direction.
  CHECK(timeline(PipelineSchedule::kGpipe, 2, 1, 2).makespan_seconds == 9);
  CHECK(timeline(PipelineSchedule::kGpipe, 2, 1, 2, {1, 2, 1, 1}, 0.5).makespan_seconds == 10);
  CHECK(timeline(PipelineSchedule::kGpipe, 3, 1, 2, {1, 2, 1, 1}, 0.5).makespan_seconds == 14);
  // A micro-batch passes down the V and up again: chunk 1 begins on the stage where chunk 0 ended.
  CHECK(timeline(PipelineSchedule::kZbV, 1, 2, 1, {1, 2, 1, 1}, 100).makespan_seconds == 6);
  const ScheduleTimeline v = timeline(PipelineSchedule::kZbV, 2, 2, 1, {1, 2, 1, 1}, 10);
  CHECK(v.stages[1].actions[0].start_seconds == 11);
  CHECK(v.stages[1].actions[1].start_seconds == 12);
  CHECK(v.stages[0].actions[1].start_seconds == 23);
}

TEST_CASE("each action begins when the one before it has ended and its inputs are there") {
  const ScheduleTimeline line = timeline(PipelineSchedule::k1F1B, 2, 1, 2, {1, 3, 2, 1});
  std::string shown;
  for (const StageTimeline& stage : line.stages) {
    for (const TimedAction& timed : stage.actions)
      shown += cat(phase_letter(timed.action.phase), timed.action.micro_batch, " ",
                   timed.start_seconds, "-", timed.end_seconds, " ");
    shown += "| ";
  }
  CHECK(shown == "F0 0-1 F1 1-2 B0 5-8 B1 9-12 | F0 1-2 B0 2-5 F1 5-6 B1 6-9 | ");
  CHECK(line.makespan_seconds == 12);
  CHECK(line.idle_share(0) == Approx(4.0 / 12));
  CHECK(line.idle_share() == Approx(4.0 / 12));
}

TEST_CASE("with unequal chunks, the slowest stage is never idle once its inputs arrive in time") {
  const std::vector<PhaseSeconds> by_chunk{{1, 2, 1, 1}, {3, 6, 3, 3}};
  const ScheduleTimeline line = simulate_timeline(make_schedules(PipelineSchedule::k1F1B, 2, 1, 8),
                                                  ChunkPlacement::kLoop, by_chunk);
  CHECK(line.makespan_seconds == 1 + 8 * 9 + 2);
  CHECK(own_span(line.stages[1]) == line.stages[1].busy_seconds);
  CHECK(line.idle_share(0) == Approx(1 - 24.0 / 75));
}

TEST_CASE("lists that wait for each other have no timeline") {
  auto lists = make_schedules(PipelineSchedule::k1F1B, 2, 1, 2);
  std::swap(lists[1][0], lists[1][1]);
  CHECK_THROWS(simulate_timeline(lists, ChunkPlacement::kLoop, equal_chunk_seconds(2)));
}

}  // namespace
}  // namespace ftrun
