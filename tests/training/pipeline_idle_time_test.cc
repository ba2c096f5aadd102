#include "training/pipeline_idle_time.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <random>
#include <tuple>
#include <utility>

#include "program/step_cases.h"
#include "sim/walk.h"

#include <catch2/catch.hpp>

// These tests run the programs of all stages in simulated time: a test sets how long a stage's work
// takes, and its waits follow from the programs.

namespace ftrun {
namespace {

using testing::StepCase;

/// Returns how many seconds an instruction of a rank takes.
using InstrSeconds = std::function<double(int rank, const Instr&)>;

class TimedWorld {
 public:
  TimedWorld(const std::vector<StepProgram>& steps, InstrSeconds seconds)
      : seconds_(std::move(seconds)) {
    std::vector<RankProgram> ranks;
    for (size_t r = 0; r < steps.size(); ++r)
      ranks.push_back({static_cast<int>(r), &steps[r].program});
    world_ = world_of(ranks);
    for (const Program* program : world_.programs)
      schedules_.push_back(make_lane_schedule(*program));
    for (const RankProgram& rank : ranks)
      ranks_.push_back({rank.program, PhaseClock(*rank.program), {}, {}});
    for (Rank& rank : ranks_) {
      rank.lanes.resize(static_cast<size_t>(lane_count(*rank.program)));
      rank.done.resize(rank.program->instrs.size());
      rank.clock.begin_run();
    }
  }

  std::vector<PipelineSeconds> run() {
    Walk walk(world_, schedules_);
    walk.begin();
    while (!walk.ready().empty()) {
      run_on_all_ranks(walk, walk.ready().front());
      walk.finish(0);
    }
    REQUIRE(walk.fault_text() == "");
    std::vector<PipelineSeconds> found;
    for (const Rank& rank : ranks_) found.push_back(rank.clock.seconds());
    return found;
  }

 private:
  struct Rank {
    const Program* program;
    PhaseClock clock;
    /// The times at which the last instruction of each lane, and each instruction, was done.
    std::vector<double> lanes;
    std::vector<double> done;
  };

  /// Runs a collective or a transfer; it begins when the last of its ranks has reached it.
  void run_on_all_ranks(const Walk& walk, Walk::LaneHead lane_head) {
    const std::span<const int32_t> members = walk.joint_members(lane_head);
    double start = 0;
    for (const int32_t member : members)
      start = std::max(start,
                       arrival_of(member, walk.instr(walk.lane_head_of_member(member, lane_head))));
    for (const int32_t member : members) {
      const Instr& instr = walk.instr(walk.lane_head_of_member(member, lane_head));
      Rank& rank = ranks_[static_cast<size_t>(member)];
      const double end = start + seconds_(member, instr);
      if (instr.lane == Lane::kCompute) record_instr(rank, instr, end - start);
      rank.lanes[static_cast<size_t>(instr.lane)] = end;
      rank.done[static_cast<size_t>(&instr - rank.program->instrs.data())] = end;
    }
  }

  static double when_done(const Rank& rank, const Instr& instr, bool stages_alone) {
    double when = rank.lanes[static_cast<size_t>(instr.lane)];
    for (const InstrId wait : instr.waits)
      if (!stages_alone || is_between_stages(*rank.program, rank.program->instr(wait).lane))
        when = std::max(when, rank.done[static_cast<size_t>(wait)]);
    return when;
  }

  double arrival_of(int32_t member, const Instr& instr) const {
    return when_done(ranks_[static_cast<size_t>(member)], instr, false);
  }

  static void record_instr(Rank& rank, const Instr& instr, double seconds) {
    const double before = rank.lanes[static_cast<size_t>(Lane::kCompute)];
    const double stages = when_done(rank, instr, true), all = when_done(rank, instr, false);
    rank.clock.record_instr(
        instr, {.stage_seconds = stages - before, .other_seconds = all - stages}, seconds);
  }

  const InstrSeconds seconds_;
  World world_;
  std::vector<LaneSchedule> schedules_;
  std::vector<Rank> ranks_;
};

/// Returns a step case with one block in each model chunk; embedding and head are in the first and
/// the last chunk.
StepCase pipeline_of(PipelineSchedule kind, int stages, bool overlap) {
  const int chunks = required_chunks(kind) > 0 ? required_chunks(kind) : 2;
  const int model_chunks = stages * chunks;
  const ModelConfig config = testing::small_config(model_chunks, false);
  StepCase step_case{testing::build(config), {}, {.stages = stages}, config};
  std::vector<int32_t> cuts{0};
  for (int32_t model_chunk = 1; model_chunk < model_chunks; ++model_chunk)
    cuts.push_back(model_chunk + 1);
  cuts.push_back(model_chunks + 2);
  step_case.options.schedule = kind;
  step_case.options.micro_batches = 8;
  step_case.options.overlap = overlap;
  step_case.options.state.decays = testing::decays_matrices;
  step_case.options.state.pipeline =
      PipelineLayout(stages, chunks, traits_of(kind).placement, cuts);
  return step_case;
}

bool is_block(const StepCase& step_case, int32_t layer) {
  return layer > 0 && layer <= step_case.options.state.pipeline.model_chunks();
}

/// Returns whether an instruction belongs to a block. Embedding and head take no time here.
bool is_of_block(const StepCase& step_case, const Instr& instr) {
  return instr.runs_ops() && is_block(step_case, instr.layer);
}

std::vector<IdleShare> idle_of(const StepCase& step_case, const InstrSeconds& seconds) {
  const PipelineLayout& pipeline = step_case.options.state.pipeline;
  const StageActions lists = make_schedules(step_case.options.schedule, pipeline.stages(),
                                            pipeline.chunks(), step_case.options.micro_batches);
  const std::vector<StepProgram> steps = step_case.steps();
  const std::vector<PipelineSeconds> found = TimedWorld(steps, seconds).run();
  std::vector<StageActionSeconds> stages(lists.size());
  for (size_t stage = 0; stage < stages.size(); ++stage)
    stages[stage].add(found[stage], lists[stage], pipeline, static_cast<int>(stage),
                      static_cast<int32_t>(step_case.built.model.layers.size()));
  return idle_shares(lists, traits_of(step_case.options.schedule).placement, stages);
}

void require_idle(const std::vector<IdleShare>& found, const std::vector<double>& measured,
                  const std::vector<double>& by_schedule) {
  REQUIRE(found.size() == measured.size());
  for (size_t stage = 0; stage < found.size(); ++stage) {
    INFO("stage " << stage);
    CHECK(found[stage].measured == Approx(measured[stage]).margin(1e-9));
    CHECK(found[stage].by_schedule == Approx(by_schedule[stage]).margin(1e-9));
  }
}

TEST_CASE(
    "programs whose transfers take no time wait exactly as long as their schedule implies, "
    "whatever each action takes") {
  std::mt19937_64 random(5);
  for (const PipelineSchedule kind :
       {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved,
        PipelineSchedule::kZbH1, PipelineSchedule::kZbV})
    for (const auto& [stages, overlap] : {std::pair{2, true}, {2, false}, {4, true}, {4, false}}) {
      const StepCase step_case = pipeline_of(kind, stages, overlap);
      std::map<std::tuple<int, InstrKind, int32_t, int32_t>, double> known;
      const auto seconds = [&](int rank, const Instr& instr) {
        if (instr.kind != InstrKind::kGradientNorm && !is_of_block(step_case, instr)) return 0.0;
        const auto [found, is_new] =
            known.try_emplace({rank, instr.kind, instr.layer, instr.micro_batch});
        if (is_new) found->second = static_cast<double>(10 + random() % 20);
        return found->second;
      };
      INFO(testing::schedule_text(
          make_schedule(kind, stages, step_case.options.state.pipeline.chunks(), 0, 8)));
      for (const IdleShare& idle : idle_of(step_case, seconds))
        CHECK(idle.measured == Approx(idle.by_schedule).margin(1e-9));
    }
}

TEST_CASE("no stage waits for another one within its actions") {
  for (const PipelineSchedule kind :
       {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved,
        PipelineSchedule::kZbH1, PipelineSchedule::kZbV})
    for (const bool overlap : {true, false}) {
      const StepCase step_case = pipeline_of(kind, 2, overlap);
      const InstrSeconds second = [&](int, const Instr& instr) {
        return is_of_block(step_case, instr) ? 1.0 : 0.0;
      };
      INFO("schedule " << static_cast<int>(kind) << (overlap ? ", overlap" : ""));
      const std::vector<StepProgram> steps = step_case.steps();
      for (const PipelineSeconds& stage : TimedWorld(steps, second).run())
        for (const auto& [phase, seconds] : stage.layer_seconds)
          CHECK(seconds == (is_block(step_case, phase.layer) ? 1.0 : 0.0));
    }
}

/// Returns times where a forward pass takes one second and a backward pass two, plus what `late`
/// adds.
InstrSeconds one_and_two(const StepCase& step_case, const InstrSeconds& late = {}) {
  return [&step_case, late](int rank, const Instr& instr) {
    const double usual = instr.kind == InstrKind::kForward ? 1 : 2;
    return (is_of_block(step_case, instr) ? usual : 0) + (late ? late(rank, instr) : 0);
  };
}

TEST_CASE("a slow stage shows in the others' waits, as measured and by the schedule") {
  const StepCase step_case = pipeline_of(PipelineSchedule::k1F1B, 2, false);
  require_idle(idle_of(step_case, one_and_two(step_case)), {3.0 / 27, 3.0 / 27},
               {3.0 / 27, 3.0 / 27});
  // Each backward pass of the last stage takes one second more. A step then takes F0, eight times
  // four seconds, and B0.
  const auto always = [&](int rank, const Instr& instr) {
    return rank == 1 && is_of_block(step_case, instr) && instr.kind == InstrKind::kBackward ? 1.0
                                                                                            : 0.0;
  };
  require_idle(idle_of(step_case, one_and_two(step_case, always)), {11.0 / 35, 3.0 / 35},
               {11.0 / 35, 3.0 / 35});
  // A delay in one micro-batch counts where it happens: the last stage has no slack before the
  // first stage's first backward pass. If the same two seconds were spread over all backward
  // passes, the stages would wait 2.75 and 4.75 of 28.75 seconds.
  const auto once = [&](int rank, const Instr& instr) {
    return rank == 0 && is_of_block(step_case, instr) && instr.kind == InstrKind::kBackward &&
                   instr.micro_batch == 0
               ? 2.0
               : 0.0;
  };
  require_idle(idle_of(step_case, one_and_two(step_case, once)), {3.0 / 29, 5.0 / 29},
               {3.0 / 29, 5.0 / 29});
  // The last stage's last backward pass is faster, because nothing else runs at that time.
  const auto alone = [&](int rank, const Instr& instr) {
    return rank == 1 && is_of_block(step_case, instr) && instr.kind == InstrKind::kBackward &&
                   instr.micro_batch == 7
               ? -1.0
               : 0.0;
  };
  require_idle(idle_of(step_case, one_and_two(step_case, alone)), {2.0 / 26, 3.0 / 26},
               {2.0 / 26, 3.0 / 26});
}

TEST_CASE(
    "work of a stage after its last action is not a wait of that stage, but others wait for it") {
  const StepCase step_case = pipeline_of(PipelineSchedule::k1F1B, 2, false);
  const auto norm = [&](int rank, const Instr& instr) {
    return rank == 0 && instr.kind == InstrKind::kGradientNorm ? 3.0 : 0.0;
  };
  require_idle(idle_of(step_case, one_and_two(step_case, norm)), {3.0 / 30, 6.0 / 30},
               {3.0 / 30, 6.0 / 30});
}

TEST_CASE("a late transfer is measured, and not attributed to the schedule") {
  const StepCase step_case = pipeline_of(PipelineSchedule::k1F1B, 2, false);
  const auto send = [](int, const Instr& instr) {
    return instr.is_transfer() && instr.micro_batch == 0 ? 1.0 : 0.0;
  };
  const std::vector<IdleShare> found = idle_of(step_case, one_and_two(step_case, send));
  require_idle(found, {5.0 / 29, 5.0 / 29}, {3.0 / 27, 3.0 / 27});
}

}  // namespace
}  // namespace ftrun
