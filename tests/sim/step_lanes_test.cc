#include "sim/step_lanes.h"

#include <algorithm>
#include <optional>
#include <random>

#include "machine/machine_file.h"
#include "program/memory_plan.h"
#include "program/models.h"
#include "sim/step_trace.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

constexpr const char* kMachine = R"(machine: gpus
device: gpu
devices: 4
rates:
  - memory: 100 GB/s
    products: {fp32: 1 TFLOP/s}
links:
  node: {latency: 1 us, bandwidth: 1 GB/s}
)";

/// A rank whose compute lane runs instructions with these begins and lengths.
struct HandmadeRank {
  Program program;
  RankTimeline rank;

  explicit HandmadeRank(const std::vector<std::pair<Picoseconds, Picoseconds>>& times) {
    for (size_t i = 0; i < times.size(); ++i) {
      Instr instr{.kind = i % 2 == 0 ? InstrKind::kForward : InstrKind::kBackward};
      instr.layer = static_cast<int32_t>(i);
      program.instrs.push_back(instr);
    }
    rank.program = &program;
    for (size_t i = 0; i < times.size(); ++i)
      rank.instrs.push_back({&program.instrs[i], times[i].first, times[i].first + times[i].second});
  }
  std::vector<LaneBar> bars(Picoseconds pixel) const {
    const std::vector<LaneBars> lanes = make_lane_bars(rank, pixel);
    return lanes.empty() ? std::vector<LaneBar>{} : lanes.front().bars;
  }
};

TEST_CASE("instructions that fill a pixel stay apart, shorter neighbors become one block") {
  const HandmadeRank made({{0, 10}, {10, 3}, {13, 0}, {14, 2}, {40, 1}, {50, 10}, {60, 12}});
  const std::vector<LaneBar> bars = made.bars(10);
  REQUIRE(bars.size() == 5);
  CHECK(bars[0].count == 1);
  // Two instructions of lengths 3 and 2, both backward, with one between them that takes no time.
  CHECK((bars[1].begin == 10 && bars[1].end == 16 && bars[1].busy == 5));
  CHECK((bars[1].count == 2 && bars[1].kind == WorkKind::kBackward));
  CHECK((bars[1].first->layer == 1 && bars[1].last->layer == 3));
  CHECK((bars[2].begin == 40 && bars[2].count == 1));
  CHECK((bars[3].begin == 50 && bars[4].end == 72));
  CHECK(made.bars(1).size() == 6);
}

TEST_CASE("a lane has at most three bars per pixel, plus one, and they show all its work") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<Picoseconds, Picoseconds>> times;
    Picoseconds now = 0;
    const Picoseconds most = 1 + random() % 60;
    for (int i = 0; i < 1000; ++i) {
      now += random() % 4 == 0 ? random() % most : 0;
      const Picoseconds takes = random() % 20 == 0 ? random() % 500 : random() % most;
      times.push_back({now, takes});
      now += takes;
    }
    const HandmadeRank made(times);
    Picoseconds works = 0;
    int64_t instrs = 0;
    for (const auto& [begin, takes] : times) {
      works += takes;
      instrs += takes > 0;
    }
    const Picoseconds pixel = 1 + random() % 400;
    const std::vector<LaneBar> bars = made.bars(pixel);
    CHECK(static_cast<Picoseconds>(bars.size()) <= 3 * (now / pixel + 1) + 1);
    for (size_t i = 0; i < bars.size(); ++i) {
      works -= bars[i].busy;
      instrs -= bars[i].count;
      REQUIRE(bars[i].busy <= bars[i].end - bars[i].begin);
      if (i > 0) REQUIRE(bars[i].begin >= bars[i - 1].end);
    }
    CHECK(works == 0);
    CHECK(instrs == 0);
    const StepLanes lanes = make_step_lanes({&made.rank}, now, 100);
    CHECK(lanes.ranks[0][0].bars.size() <= 100);
    CHECK(lanes.ranks[0][0].busy == make_lane_bars(made.rank, pixel)[0].busy);
  }
}

/// The timeline of a step of a pipeline of two stages, with two data-parallel ranks each.
struct PredictedTimeline {
  Config config;
  ModelConfig model = small_config(4, false);
  std::optional<StepPlan> own;
  std::optional<RankClassPlans> all;
  StepTimeline timeline;
  StepTime time;

  PredictedTimeline() {
    config.device = DeviceKind::kCuda;
    config.parallel.pipeline = 2;
    config.parallel.virtual_stages = 1;
    config.parallel.data = 2;
    config.zero.stage = 1;
    config.train_micro_batch_size_per_gpu = 1;
    config.gradient_accumulation_steps = 4;
    config.data.sequence_length = 8;
    own.emplace(plan_steps(config, model, 0));
    all.emplace(config, model, 0, *own);
    time = predict_step(*all, parse_machine("gpus.yaml", kMachine), {}, &timeline);
  }
};

TEST_CASE("a timeline has all instructions of each class's lowest rank, and its times") {
  const PredictedTimeline step;
  REQUIRE(step.timeline.ranks.size() == static_cast<size_t>(step.all->classes().count()));
  CHECK(static_cast<double>(step.timeline.end) / kPicosecondsPerSecond == step.time.seconds);
  bool waits_for_groups = false;
  double most = 0;
  for (size_t r = 0; r < step.timeline.ranks.size(); ++r) {
    const RankTimeline& rank = step.timeline.ranks[r];
    CHECK(rank.rank == step.all->classes().lowest_ranks[r]);
    CHECK(rank.instrs.size() == rank.program->instrs.size());
    Picoseconds compute = 0;
    for (const LaneBars& lane : make_lane_bars(rank, 1))
      if (lane.lane == Lane::kCompute) compute = lane.busy;
    CHECK(static_cast<double>(compute) / kPicosecondsPerSecond ==
          Approx(rank.time.layer_seconds + rank.time.update_seconds + rank.time.other_seconds)
              .epsilon(1e-12));
    waits_for_groups |= rank.time.idle_by_lane.collective_seconds() > 0;
    double parts = 0;
    for (const auto& [name, seconds] : list_step_parts(rank.time)) parts += seconds;
    CHECK(parts <= rank.time.seconds * (1 + 1e-9));
    most = std::max(most, parts / rank.time.seconds);
  }
  CHECK(waits_for_groups);
  // The rank that ends last waits for nobody at the end, so its parts add up to the whole step.
  CHECK(most == Approx(1).epsilon(1e-9));
}

TEST_CASE("memory over a step reaches the peak that the plan knows") {
  const PredictedTimeline step;
  for (const RankTimeline& rank : step.timeline.ranks)
    for (const size_t most : {1, 7, 100'000}) {
      const std::vector<MemorySample> points =
          sample_step_memory(rank, Tier::kDevice, step.timeline.end, most);
      REQUIRE(!points.empty());
      CHECK(points.size() <= most);
      int64_t fullest = 0;
      for (size_t i = 0; i < points.size(); ++i) {
        fullest = std::max(fullest, sum_categories(points[i].bytes));
        if (i > 0) {
          CHECK(points[i].begin > points[i - 1].begin);
          CHECK(points[i].bytes != points[i - 1].bytes);
        }
        CHECK(points[i].begin < step.timeline.end);
      }
      CHECK(fullest ==
            sum_categories(plan_memory({rank.program}).at(Tier::kDevice).bytes_at_joint_peak));
    }
}

TEST_CASE(
    "a trace has a process per rank of the timeline and an event per instruction that takes time") {
  const PredictedTimeline step;
  const std::string text = step_trace_text(step.timeline);
  size_t events = 0, expected = 0;
  for (size_t at = 0; (at = text.find(R"("ph":"X")", at)) != text.npos; ++at) ++events;
  for (const RankTimeline& rank : step.timeline.ranks) {
    CHECK(text.find(cat(R"("name":"predicted rank )", rank.rank, "\"")) != text.npos);
    for (const TimelineInstr& one : rank.instrs) expected += one.end > one.begin;
  }
  CHECK(events == expected);
  CHECK(text.find("\"name\":\"pipeline@0>2\"") != text.npos);
}

}  // namespace
}  // namespace ftrun
