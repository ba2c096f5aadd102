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

/// StageActionSeconds holds the seconds of a stage in the same steps, of one rank or of all its
/// ranks.
struct StageActionSeconds {
  /// Seconds waited for other stages.
  double waited = 0;
  /// Seconds of each action of the stage's list in all its layers, and from the gradient norm to
  /// the decision.
  std::vector<double> actions;
  double after = 0;

  /// Adds a step with this list; `layers` of the model. Seconds before the first layer count with
  /// the first action.
  void add(const PipelineSeconds& step, const std::vector<ScheduleAction>& list,
           const PipelineLayout& pipeline, int stage, int32_t layers);
  void add(const StageActionSeconds& other);
};

/// IdleShare is the share of a stage's steps, until the decision, that it waits for other stages.
struct IdleShare {
  /// The share in the run.
  double measured = 0;
  /// The share if only the stages' own work cost time, in the order of their lists: computed by a
  /// walk that knows the time of each action, and no waits. A delay of one action counts where it
  /// occurs, not in the mean of a phase.
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

  /// Ends a step, after each run of the training program. The first of several is not counted:
  /// memory is first touched in it.
  void end_step();
  /// Puts the ranks' figures together. Collective, after the last step.
  void total(Session& session);

  /// Makes a table; "" where there is nothing to report.
  std::string text() const;
  /// Returns the figures for RunManifest::pipeline.
  std::map<std::string, std::map<std::string, int64_t>> record() const;

 private:
  const StepOptions& options() const { return setup_.plan().options; }
  const PipelineLayout& pipeline() const { return options().state.pipeline; }

  TrainingSetup& setup_;
  /// The lists of all stages; none if there is one stage.
  StageActions lists_;
  int64_t steps_ = 0;
  StageActionSeconds sums_;
  /// The shares by stage.
  std::vector<IdleShare> idle_;
};

}  // namespace ftrun
