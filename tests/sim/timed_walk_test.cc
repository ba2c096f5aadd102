#include "sim/timed_walk.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "axes/pipeline/pipeline_config.h"
#include "axes/pipeline/schedule_timeline.h"
#include "program/step_cases.h"
#include "sim/folded_world.h"
#include "sim/rank_class_plans.h"
#include "sim/rank_classes.h"
#include "sim/step_time.h"
#include "sweep.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns the times of a single rank, where instruction i costs costs[i].
RankWalkTimes time_rank(const Program& program, const std::vector<InstrCost>& costs, int cores) {
  const std::vector<LaneSchedule> schedules{make_lane_schedule(program)};
  const RankProgram ranks[] = {{0, &program}};
  const World world = world_of(ranks);
  return run_timed_walk(world, schedules, {1, cores},
                        [&](int32_t, const Instr& instr) {
                          return costs[static_cast<size_t>(&instr - program.instrs.data())];
                        })
      .front();
}

TEST_CASE("lanes run at the same time, and an instruction begins when its waits are done") {
  const Program program = program_of_touches({{.lane = Lane::kCompute, .buffer = 0},
                                              {.lane = Lane::kToHost, .buffer = 1, .waits = {0}},
                                              {.lane = Lane::kCompute, .buffer = 2},
                                              {.lane = Lane::kCompute, .buffer = 3, .waits = {1}}});
  const RankWalkTimes time = time_rank(program, {{10, 0}, {100, 0}, {30, 0}, {5, 0}}, 1);
  CHECK(time.end == 115);
  CHECK(time.busy[static_cast<size_t>(InstrKind::kBegin)] == 45);
  // Compute is idle from 40, when its second instruction is done, to 110.
  CHECK(time.idle_by_cause[static_cast<size_t>(WaitCause::kCopies)] == 70);
}

TEST_CASE("a wait is charged to what runs in it, and to what that waited for before") {
  // A copy to host memory begins when a copy to the device has ended.
  const Program program = program_of_touches({{.lane = Lane::kToDevice, .buffer = 0},
                                              {.lane = Lane::kToHost, .buffer = 1, .waits = {0}},
                                              {.lane = Lane::kCompute, .buffer = 2},
                                              {.lane = Lane::kCompute, .buffer = 3, .waits = {1}}});
  const RankWalkTimes time = time_rank(program, {{70, 0}, {20, 0}, {30, 0}, {5, 0}}, 1);
  CHECK(time.end == 95);
  CHECK(time.idle_by_cause[static_cast<size_t>(WaitCause::kCopies)] == 60);
  REQUIRE(time.idle_by_lane.size() > static_cast<size_t>(Lane::kToHost));
  CHECK(time.idle_by_lane[static_cast<size_t>(Lane::kToDevice)] == 40);
  CHECK(time.idle_by_lane[static_cast<size_t>(Lane::kToHost)] == 20);
}

TEST_CASE("threads that want the same cores share them") {
  const Program program = program_of_touches(
      {{.lane = Lane::kCompute, .buffer = 0}, {.lane = Lane::kToHost, .buffer = 1}});
  CHECK(time_rank(program, {{100, 1}, {40, 1}}, 2).end == 100);
  // On one core both run at half speed until the shorter one is done at 80; then 60 of the
  // other are left.
  CHECK(time_rank(program, {{100, 1}, {40, 1}}, 1).end == 140);
  // Three threads share two cores until 60, then two threads need 100 - 40 more.
  CHECK(time_rank(program, {{100, 2}, {40, 1}}, 2).end == 120);
  // A disk request uses no core.
  CHECK(time_rank(program, {{100, 1}, {40, 0}}, 1).end == 100);
}

constexpr Picoseconds kMillisecond = 1'000'000'000;

/// Returns the times of two ranks of a node with one core, whose programs are equal.
std::vector<RankWalkTimes> time_rank_pair(const Program& program,
                                          const std::vector<InstrCost>& costs) {
  const std::vector<LaneSchedule> schedules{make_lane_schedule(program)};
  const RankProgram ranks[] = {{0, &program}, {1, &program}};
  const World world = world_of(ranks);
  return run_timed_walk(world, schedules, {2, 1}, [&](int32_t, const Instr& instr) {
    return costs[static_cast<size_t>(&instr - program.instrs.data())];
  });
}

TEST_CASE("ranks that want the same core take turns at every tick of 4 ms") {
  const Program program = program_of_touches({{.lane = Lane::kCompute, .buffer = 0}});
  const std::vector<RankWalkTimes> times = time_rank_pair(program, {{10 * kMillisecond, 1}});
  // Rank 0 runs from 0 to 4, from 8 to 12 and from 16 to 18; rank 1 in between and to the end.
  CHECK(times[0].end == 18 * kMillisecond);
  CHECK(times[1].end == 20 * kMillisecond);
  CHECK(times[0].busy[static_cast<size_t>(InstrKind::kBegin)] == 18 * kMillisecond);
  CHECK(times[1].busy[static_cast<size_t>(InstrKind::kBegin)] == 16 * kMillisecond);
}

TEST_CASE("a step of hours needs few time slices") {
  const Program program = program_of_touches({{.lane = Lane::kCompute, .buffer = 0}});
  const Picoseconds hours = 10'000'000 * kMillisecond;
  const std::vector<RankWalkTimes> times = time_rank_pair(program, {{hours, 1}});
  CHECK(times[1].end == 2 * hours);
  CHECK(times[0].end > 3 * hours / 2);
}

TEST_CASE("times of compute vary by rank, instruction and walk, by at most 3 %") {
  const Program program = program_of_touches({{.lane = Lane::kCompute, .buffer = 0},
                                              {.lane = Lane::kToHost, .buffer = 1},
                                              {.lane = Lane::kCompute, .buffer = 2}});
  const std::vector<LaneSchedule> schedules{make_lane_schedule(program)};
  const RankProgram ranks[] = {{0, &program}, {1, &program}};
  const World world = world_of(ranks);
  // Returns the times of rank 0's two compute instructions, then those of rank 1's.
  const auto times_in_walk = [&](uint64_t walk) {
    std::vector<Picoseconds> times(4);
    const auto record = [&](const WalkedInstr& walked) {
      const Picoseconds time = walked.end - walked.begin;
      const auto position = static_cast<size_t>(walked.instr - program.instrs.data());
      if (position == 1)
        CHECK(time == kMillisecond);  // a copy does not vary
      else
        times[2 * static_cast<size_t>(walked.rank) + position / 2] = time;
    };
    run_timed_walk(
        world, schedules, {2, 2},
        [](int32_t, const Instr&) {
          return InstrCost{kMillisecond, 0};
        },
        record, TimeVariation{walk});
    return times;
  };
  std::set<Picoseconds> different;
  for (const uint64_t walk : {0, 2}) {
    const std::vector<Picoseconds> times = times_in_walk(walk), opposite = times_in_walk(walk + 1);
    CHECK(times == times_in_walk(walk));
    for (size_t i = 0; i < times.size(); ++i) {
      different.insert(times[i]);
      CHECK(std::abs(times[i] - kMillisecond) <= 3 * kMillisecond / 100);
      CHECK(times[i] + opposite[i] == 2 * kMillisecond);
    }
  }
  CHECK(different.size() == 8);
}

TEST_CASE("a rank that waits gives its core away, and gets it back after the others' turns") {
  // Compute, then a copy of 1 ms that uses no core, then compute again.
  const Program program = program_of_touches({{.lane = Lane::kCompute, .buffer = 0},
                                              {.lane = Lane::kToHost, .buffer = 1, .waits = {0}},
                                              {.lane = Lane::kCompute, .buffer = 2, .waits = {1}}});
  const std::vector<RankWalkTimes> times = time_rank_pair(
      program, {{3 * kMillisecond, 1}, {1 * kMillisecond, 0}, {2 * kMillisecond, 1}});
  // Rank 0 computes from 0 to 3, copies until 4, and computes from 6 to 8: rank 1 has the core from
  // 3 to 6. Rank 1 copies until 7 and computes from 8 to 10.
  CHECK(times[0].end == 8 * kMillisecond);
  CHECK(times[1].end == 10 * kMillisecond);
  for (const RankWalkTimes& time : times) {
    CHECK(time.busy[static_cast<size_t>(InstrKind::kBegin)] == 5 * kMillisecond);
    CHECK(time.idle_by_cause[static_cast<size_t>(WaitCause::kCopies)] >= 2 * kMillisecond);
  }
  // The time in which rank 0 waits for the core counts as a wait for what it waited for last.
  CHECK(times[0].idle_by_cause[static_cast<size_t>(WaitCause::kCopies)] == 3 * kMillisecond);
}

TEST_CASE("a rank keeps its core at a tick if it has had it for less than a slice of 1.4 ms") {
  const Program program = program_of_touches({{.lane = Lane::kCompute, .buffer = 0},
                                              {.lane = Lane::kToHost, .buffer = 1, .waits = {0}},
                                              {.lane = Lane::kCompute, .buffer = 2, .waits = {1}}});
  const std::vector<RankWalkTimes> times = time_rank_pair(
      program, {{kMillisecond * 7 / 2, 1}, {kMillisecond / 4, 0}, {5 * kMillisecond, 1}});
  // Rank 0 computes until 3.5 and waits for the core from 3.75 on. Rank 1, which has had it since
  // 3.5, keeps it at the tick at 4, and computes until 7. Rank 0 keeps it at the tick at 8 in the
  // same way, and computes until 12.
  CHECK(times[0].end == 12 * kMillisecond);
  CHECK(times[1].end == 17 * kMillisecond);
}

TEST_CASE("instructions that follow each other at once keep their core within a time slice") {
  const Program program = program_of_touches(
      {{.lane = Lane::kCompute, .buffer = 0}, {.lane = Lane::kCompute, .buffer = 1}});
  const std::vector<RankWalkTimes> times =
      time_rank_pair(program, {{1 * kMillisecond, 1}, {2 * kMillisecond, 1}});
  CHECK(times[0].end == 3 * kMillisecond);
  CHECK(times[1].end == 6 * kMillisecond);
}

Config pipeline_config(PipelineSchedule schedule, int stages, int64_t micro_batches) {
  Config config;
  config.parallel.data = 1;
  config.parallel.pipeline = stages;
  config.parallel.schedule = schedule;
  config.parallel.virtual_stages = 1;
  config.train_micro_batch_size_per_gpu = 1;
  config.gradient_accumulation_steps = micro_batches;
  config.data.sequence_length = 4;
  return config;
}

/// Walks the pipeline with blocks that take 1000 forward and 2000 backward (1000 for each of the
/// two kinds of gradients), and nothing else that takes time.
Picoseconds time_pipeline(const Config& config, const ModelConfig& model) {
  const StepPlan own = plan_steps(config, model, 0);
  const RankClassPlans all(config, model, 0, own);
  std::vector<const Program*> programs;
  std::vector<LaneSchedule> schedules;
  for (int32_t c = 0; c < all.classes().count(); ++c) {
    programs.push_back(&all.plan(c).train.program);
    schedules.push_back(make_lane_schedule(*programs.back()));
  }
  const World world = world_of(all.classes(), programs, own.options.state);
  const auto blocks = static_cast<int32_t>(model.layers);
  const std::vector<RankWalkTimes> times =
      run_timed_walk(world, schedules, {1, 1}, [&](int32_t, const Instr& instr) {
        const bool is_block = instr.layer >= 1 && instr.layer <= blocks;
        if (!is_block) return InstrCost{};
        switch (instr.kind) {
          case InstrKind::kForward:
          case InstrKind::kInputGrad:
          case InstrKind::kWeightGrad:
            return InstrCost{1000, 0};
          case InstrKind::kBackward:
            return InstrCost{2000, 0};
          default:
            return InstrCost{};
        }
      });
  Picoseconds end = 0;
  for (const RankWalkTimes& time : times) end = std::max(end, time.end);
  return end;
}

TEST_CASE("pipelines take what their schedules' timelines say, to the picosecond") {
  const ModelConfig model = small_config(8, false);
  for (const auto name :
       {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B, PipelineSchedule::kZbH1})
    for (const int stages : {2, 4})
      for (const int64_t micro_batches : {1, 3, 8}) {
        Config config = pipeline_config(name, stages, micro_batches);
        config.parallel.pipeline_layers.assign(static_cast<size_t>(stages), 8 / stages);
        INFO(static_cast<int>(name)
             << ", " << stages << " stages, " << micro_batches << " micro-batches");
        const auto lists = make_schedules(pipeline_schedule(config), stages, 1,
                                          static_cast<int32_t>(micro_batches));
        const double f = 1000.0 * 8 / stages;
        const std::vector<PhaseSeconds> parts(static_cast<size_t>(stages), {f, 2 * f, f, f});
        const double expected =
            simulate_timeline(lists, traits_of(pipeline_schedule(config)).placement, parts)
                .makespan_seconds;
        CHECK(static_cast<double>(time_pipeline(config, model)) == expected);
        // Narayanan et al. 2019: the idle time is that of forward and backward of stages - 1
        // micro-batches.
        if (name == PipelineSchedule::k1F1B)
          CHECK(expected == 3 * f * static_cast<double>(micro_batches + stages - 1));
      }
}

/// CostedWorld is a world with a schedule and made-up costs for each entry of world.programs. A
/// rank that is slower than the others has its own entry.
struct CostedWorld {
  World world;
  std::vector<LaneSchedule> schedules;
  std::vector<int64_t> slowness;

  CostedWorld(const RankClasses& classes, const std::vector<const Program*>& programs,
              const StateOptions& state)
      : world(world_of(classes, programs, state)), slowness(programs.size(), 1) {
    for (const Program* program : programs) schedules.push_back(make_lane_schedule(*program));
  }

  void slow_down(size_t rank, int64_t times) {
    const int32_t own = world.ranks[rank].program;
    world.ranks[rank].program = static_cast<int32_t>(schedules.size());
    world.programs.push_back(world.programs[static_cast<size_t>(own)]);
    schedules.push_back(LaneSchedule(schedules[static_cast<size_t>(own)]));
    slowness.push_back(times);
  }

  /// Walks `ranks`: this world, or one that was folded from it. The cost of an instruction depends
  /// on its position in the program, that of an exchange on the number of members.
  std::vector<RankWalkTimes> walk(const World& ranks) const {
    return run_timed_walk(ranks, schedules, {1, 1}, [this](int32_t program, const Instr& instr) {
      const Program& of = *world.programs[static_cast<size_t>(program)];
      if (instr.communicates()) return InstrCost{100 * of.place_in_group(instr.group()).count, 0};
      const int64_t place = &instr - of.instrs.data(), length = std::ssize(of.instrs);
      const int64_t alone = (place * 7919 + length * 104729) % 997;
      return InstrCost{alone * slowness[static_cast<size_t>(program)], 0};
    });
  }
};

std::vector<int32_t> program_numbers(size_t count) {
  std::vector<int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

Picoseconds last_end(const std::vector<RankWalkTimes>& times) {
  Picoseconds end = 0;
  for (const RankWalkTimes& time : times) end = std::max(end, time.end);
  return end;
}

/// Requires that each rank of the folded world has the times of the lowest rank that it stands for.
void require_same_times(const World& folded, const std::vector<RankWalkTimes>& of_folded,
                        const std::vector<RankWalkTimes>& of_all) {
  for (size_t cell = 0; cell < of_folded.size(); ++cell) {
    const RankWalkTimes& one = of_folded[cell];
    const RankWalkTimes& rank = of_all[static_cast<size_t>(folded.ranks[cell].number)];
    REQUIRE(one.end == rank.end);
    REQUIRE(one.busy == rank.busy);
    REQUIRE(one.idle_by_cause == rank.idle_by_cause);
    REQUIRE(one.idle_by_lane == rank.idle_by_lane);
  }
  REQUIRE(last_end(of_folded) == last_end(of_all));
}

TEST_CASE("a rank that stands for equal ranks has the times of each of them, to the picosecond") {
  const ModelConfig model = small_config(4, false);
  int compared = 0, fewer = 0;
  for (const int stage : {0, 1, 2, 3})
    for (const int data : {1, 2, 4, 6})
      for (const int replicas : {1, 2})
        for (const int tensor : {1, 2, 4})
          for (const int pipeline : {1, 2, 4}) {
            const bool splits = stage > 0 && data % replicas == 0 && data > replicas;
            if (data * tensor * pipeline == 1 || (replicas > 1 && !splits)) continue;
            Config config = pipeline_config(PipelineSchedule::k1F1B, pipeline, 3);
            config.parallel.data = data;
            config.parallel.data_replicate = replicas;
            config.parallel.tensor = tensor;
            config.zero.stage = stage;
            config.zero.overlap_comm = true;
            INFO("stage " << stage << ", data " << data << " with " << replicas
                          << " replicas, tensor " << tensor << ", pipeline " << pipeline);
            const StepPlan own = plan_steps(config, model, 0);
            const RankClassPlans plans(config, model, 0, own);
            std::vector<const Program*> programs;
            for (int32_t c = 0; c < plans.classes().count(); ++c)
              programs.push_back(&plans.plan(c).train.program);
            const CostedWorld costed(plans.classes(), programs, plans.plan(0).options.state);
            const auto folded = fold_world(costed.world, program_numbers(programs.size()));
            if (!folded) continue;
            ++compared;
            fewer += folded->ranks.size() < costed.world.ranks.size() ? 1 : 0;
            require_same_times(*folded, costed.walk(*folded), costed.walk(costed.world));
          }
  CHECK(compared >= 60);
  CHECK(fewer >= 40);
}

TEST_CASE("random meshes take the same times folded, to the picosecond, also with a slow rank") {
  std::mt19937_64 random(sweep_seed(20261129));
  const int rounds = sweep_draws(40);
  int compared = 0, fewer = 0, slowed = 0, noticed = 0;
  while (compared < rounds) {
    const StepCase step_case =
        random() % 2 == 0 ? random_step_case(random) : random_pipeline_case(random);
    INFO(step_case.text());
    const StateOptions state = step_case.options_of_rank(0).state;
    const RankClasses classes =
        find_rank_classes(step_case.built.model, step_case.built.partition, state);
    std::vector<StepProgram> steps;
    std::vector<const Program*> programs;
    for (const int rank : classes.lowest_ranks) steps.push_back(step_case.step(rank));
    for (const StepProgram& step : steps) programs.push_back(&step.program);
    CostedWorld costed(classes, programs, state);
    std::vector<int32_t> forgetful = program_numbers(programs.size());
    const bool has_slow = random() % 2 == 0;
    if (has_slow) {
      const size_t slow = random() % costed.world.ranks.size();
      forgetful.push_back(costed.world.ranks[slow].program);
      costed.slow_down(slow, 3);
    }
    const auto folded = fold_world(costed.world, program_numbers(costed.schedules.size()));
    if (!folded) continue;
    const std::vector<RankWalkTimes> all = costed.walk(costed.world);
    require_same_times(*folded, costed.walk(*folded), all);
    ++compared;
    slowed += has_slow ? 1 : 0;
    fewer += folded->ranks.size() < costed.world.ranks.size() ? 1 : 0;
    // A fold that takes the slow rank for one of the others must give other times, unless the slow
    // rank is the one that stands for them.
    if (const auto wrong = fold_world(costed.world, forgetful); has_slow && wrong)
      noticed += last_end(costed.walk(*wrong)) != last_end(all) ? 1 : 0;
  }
  CHECK(fewer > rounds / 4);
  CHECK(slowed > rounds / 4);
  CHECK(noticed > 0);
}

}  // namespace
}  // namespace ftrun
