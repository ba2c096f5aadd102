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

/// StageActionSeconds holds the seconds of one stage in the same steps, of one rank or summed over
/// its ranks.
struct StageActionSeconds {
  /// Seconds of waits for other stages.
  double waited = 0;
  /// Seconds of each action of the stage's list in all its layers; the last entry holds those from
  /// the gradient norm to the decision.
  std::vector<double> actions;
  double after = 0;

  /// Adds a step that ran this list; `layers` is the model's number of layers. Seconds before the
  /// first layer are added to the first action.
  void add(const PipelineSeconds& step, const std::vector<ScheduleAction>& list,
           const PipelineLayout& pipeline, int stage, int32_t layers);
  void add(const StageActionSeconds& other);
};

/// IdleShare is the share of a stage's steps, up to the decision, in which the stage waits for
/// other stages.
struct IdleShare {
  /// The share measured in the run.
  double measured = 0;
  /// The share that follows from the schedule, if only the stages' own work takes time:
  /// simulate_timeline() computes it from the measured time of each action, without waits. A delay
  /// of one action counts where it occurs, not in the mean of a phase.
  double by_schedule = 0;
};
std::vector<IdleShare> idle_shares(const StageActions& lists, ChunkPlacement placement,
                                   const std::vector<StageActionSeconds>& stages);

/// PipelineUse compares the time that each stage of a pipeline waits for the others in the steps of
/// a run with the waits that follow from its schedule.
class PipelineUse {
 public:
  /// Borrows the setup.
  explicit PipelineUse(TrainingSetup& setup);

  /// Ends a step; called after each run of the training program. If there are several steps, the
  /// first is not counted, because memory is first touched in it.
  void end_step();
  /// Combines the ranks' figures. Collective, after the last step.
  void total(Session& session);

  /// Writes a table; "" where there is nothing to report.
  std::string text() const;
  /// Returns the figures for RunManifest::pipeline.
  std::map<std::string, std::map<std::string, int64_t>> record() const;

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
