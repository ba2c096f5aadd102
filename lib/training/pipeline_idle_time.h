#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "axes/pipeline/schedule_timeline.h"
#include "engine/phase_clock.h"
#include "engine/setup.h"
#include "training/session.h"

namespace ftrun {

/// StageActionSeconds holds the seconds that one pipeline stage spent, summed over steps: of one
/// rank, or summed over the ranks of the stage.
struct StageActionSeconds {
  /// Seconds of waiting for other stages.
  double waited_seconds = 0;
  /// Seconds of each action of the stage's schedule, over all layers of the action.
  /// `after_actions_seconds` holds the seconds from the gradient norm to the decision.
  std::vector<double> actions;
  double after_actions_seconds = 0;

  /// Adds a step that ran the actions in `list`; `layers` is the model's number of layers. Seconds
  /// before the first layer count for the first action.
  void add(const PipelineSeconds& step, const std::vector<ScheduleAction>& list,
           const PipelineLayout& pipeline, int stage, int32_t layers);
  void add(const StageActionSeconds& other);
};

/// IdleShare is the share of the time, from the beginning of a step to the decision, in which a
/// stage waits for other stages.
struct IdleShare {
  /// The share measured in the run.
  double measured = 0;
  /// The share that the schedule alone causes, if only the stages' own work takes time.
  /// simulate_timeline() computes it from the measured time of each action, without waits. Each
  /// action has its own time, so a delay of one action counts where it occurs.
  double by_schedule = 0;
};
std::vector<IdleShare> idle_shares(const StageActions& lists, ChunkPlacement placement,
                                   const std::vector<StageActionSeconds>& stages);

/// PipelineIdleTime measures how long each pipeline stage waits for other stages during a run, and
/// compares that with the waits that the schedule causes.
class PipelineIdleTime {
 public:
  /// Keeps a reference to the setup.
  explicit PipelineIdleTime(TrainingSetup& setup);

  /// Ends a step; called after each run of the training program. If there are several steps, the
  /// first step is not counted, because it touches its memory for the first time and is slower.
  void end_step();
  /// Sums the measurements over all ranks. Collective; called after the last step.
  void sum_over_ranks(Session& session);

  /// Returns a table; "" if there is nothing to report.
  std::string text() const;
  /// Returns the values for RunManifest::pipeline.
  std::map<std::string, std::map<std::string, int64_t>> manifest_values() const;

 private:
  const StepOptions& options() const { return setup_.plan().options; }
  const PipelineLayout& pipeline() const { return options().state.pipeline; }

  TrainingSetup& setup_;
  /// The action lists of all stages; empty if there is one stage.
  StageActions lists_;
  int64_t steps_ = 0;
  StageActionSeconds sums_;
  /// The idle shares by stage.
  std::vector<IdleShare> idle_;
};

}  // namespace ftrun
