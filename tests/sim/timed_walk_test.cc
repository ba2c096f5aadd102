#include "sim/timed_walk.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <optional>

#include "axes/pipeline/plan.h"
#include "axes/pipeline/schedule_timeline.h"
#include "program/models.h"
#include "sim/class_plans.h"
#include "sim/folded_world.h"
#include "sim/step_time.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace fixtures;

/// Returns a rank alone, whose instruction i takes costs[i].
RankTime timed(const Program& program, const std::vector<InstrCost>& costs, int processors) {
  Announcements announcements;
  const std::vector<Course> courses{whole_course(program, announcements)};
  const RankProgram ranks[] = {{0, &program}};
  const World world = world_of(ranks);
  return timed_walk(world, courses, {1, processors},
                    [&](int32_t, const Instr& instr) {
                      return costs[static_cast<size_t>(&instr - program.instrs.data())];
                    })
      .front();
}

TEST_CASE("lanes run beside each other, and what waits begins when that is done") {
  const Program program = handmade({{.lane = Lane::kCompute, .buffer = 0},
                                    {.lane = Lane::kToHost, .buffer = 1, .waits = {0}},
                                    {.lane = Lane::kCompute, .buffer = 2},
                                    {.lane = Lane::kCompute, .buffer = 3, .waits = {1}}});
  const RankTime time = timed(program, {{10, 0}, {100, 0}, {30, 0}, {5, 0}}, 1);
  CHECK(time.end == 115);
  CHECK(time.busy[static_cast<size_t>(InstrKind::kBegin)] == 45);
  // Compute stands still from 40, when its second step was done, to 110.
  CHECK(time.waited[static_cast<size_t>(WaitedFor::kCopies)] == 70);
}

TEST_CASE("a wait is charged to what runs in it, and to what that waited for before") {
  // A copy to main memory that begins when one to the device has ended.
  const Program program = handmade({{.lane = Lane::kToDevice, .buffer = 0},
                                    {.lane = Lane::kToHost, .buffer = 1, .waits = {0}},
                                    {.lane = Lane::kCompute, .buffer = 2},
                                    {.lane = Lane::kCompute, .buffer = 3, .waits = {1}}});
  const RankTime time = timed(program, {{70, 0}, {20, 0}, {30, 0}, {5, 0}}, 1);
  CHECK(time.end == 95);
  CHECK(time.waited[static_cast<size_t>(WaitedFor::kCopies)] == 60);
  REQUIRE(time.waited_on.size() > static_cast<size_t>(Lane::kToHost));
  CHECK(time.waited_on[static_cast<size_t>(Lane::kToDevice)] == 40);
  CHECK(time.waited_on[static_cast<size_t>(Lane::kToHost)] == 20);
}

TEST_CASE("threads that want the same processors share them") {
  const Program program =
      handmade({{.lane = Lane::kCompute, .buffer = 0}, {.lane = Lane::kToHost, .buffer = 1}});
  CHECK(timed(program, {{100, 1}, {40, 1}}, 2).end == 100);
  // On one processor both have half their speed until the shorter is done at 80, with 60 left of
  // the other.
  CHECK(timed(program, {{100, 1}, {40, 1}}, 1).end == 140);
  // Three threads on two processors, then two: 60, and 100 - 40 more.
  CHECK(timed(program, {{100, 2}, {40, 1}}, 2).end == 120);
  // A disk takes no processor.
  CHECK(timed(program, {{100, 1}, {40, 0}}, 1).end == 100);
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

/// Walks the pipeline with blocks of 1000 forward and 2000 backward (half of that each for its
/// two kinds of gradients), and nothing else that takes time.
Picoseconds walked(const Config& config, const ModelConfig& model) {
  const StepPlan own = plan_steps(config, model, 0);
  const ClassPlans all(config, model, 0, own);
  std::vector<const Program*> programs;
  std::vector<Course> courses;
  Announcements announcements;
  for (int32_t c = 0; c < all.classes().count(); ++c) {
    programs.push_back(&all.plan(c).train.program);
    courses.push_back(whole_course(*programs.back(), announcements));
  }
  const World world = world_of(all.classes(), programs, own.options.state);
  const auto blocks = static_cast<int32_t>(model.layers);
  const std::vector<RankTime> times =
      timed_walk(world, courses, {1, 1}, [&](int32_t, const Instr& instr) {
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
  for (const RankTime& time : times) end = std::max(end, time.end);
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
            run_timeline(lists, traits_of(pipeline_schedule(config)).placement, parts).makespan;
        CHECK(static_cast<double>(walked(config, model)) == expected);
        // Narayanan et al. 2019: stages - 1 micro-batches of forward and backward stand idle.
        if (name == PipelineSchedule::k1F1B)
          CHECK(expected == 3 * f * static_cast<double>(micro_batches + stages - 1));
      }
}

/// Times of every rank of the run, walked by all ranks and by one for all that are alike. Costs are
/// of the instruction's place in its program, exchanges' of their members.
struct TwoWalks {
  std::vector<RankTime> all, folded;
  World folded_world;
};
std::optional<TwoWalks> walked_twice(const ClassPlans& plans) {
  std::vector<const Program*> programs;
  std::vector<Course> courses;
  std::vector<int32_t> numbers;
  Announcements announcements;
  for (int32_t c = 0; c < plans.classes().count(); ++c) {
    programs.push_back(&plans.plan(c).train.program);
    courses.push_back(whole_course(*programs.back(), announcements));
    numbers.push_back(c);
  }
  const auto cost = [&](int32_t program, const Instr& instr) {
    const Program& of = *programs[static_cast<size_t>(program)];
    if (instr.communicates()) return InstrCost{100 * of.place_in(instr.group()).count, 0};
    const auto place = static_cast<int64_t>(&instr - of.instrs.data());
    return InstrCost{(place * 7919 + program * 104729) % 997, 0};
  };
  const World world = world_of(plans.classes(), programs, plans.plan(0).options.state);
  std::optional<World> folded = folded_world(world, numbers);
  if (!folded) return std::nullopt;
  TwoWalks walks;
  walks.all = timed_walk(world, courses, {1, 1}, cost);
  walks.folded = timed_walk(*folded, courses, {1, 1}, cost);
  walks.folded_world = std::move(*folded);
  return walks;
}

TEST_CASE("one rank for all that are alike takes the times of each of them, to the picosecond") {
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
            const ClassPlans plans(config, model, 0, own);
            const auto walks = walked_twice(plans);
            if (!walks) continue;
            ++compared;
            fewer += walks->folded.size() < walks->all.size() ? 1 : 0;
            // A rank that stands for others is the lowest of them.
            for (size_t cell = 0; cell < walks->folded.size(); ++cell) {
              const RankTime& one = walks->folded[cell];
              const RankTime& rank =
                  walks->all[static_cast<size_t>(walks->folded_world.ranks[cell].number)];
              REQUIRE(one.end == rank.end);
              REQUIRE(one.busy == rank.busy);
              REQUIRE(one.waited == rank.waited);
              REQUIRE(one.waited_on == rank.waited_on);
            }
            const auto last = [](const std::vector<RankTime>& times) {
              return std::max_element(
                         times.begin(), times.end(),
                         [](const RankTime& a, const RankTime& b) { return a.end < b.end; })
                  ->end;
            };
            REQUIRE(last(walks->folded) == last(walks->all));
          }
  CHECK(compared >= 60);
  CHECK(fewer >= 40);
}

}  // namespace
}  // namespace ftrun
