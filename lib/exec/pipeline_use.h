#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "exec/phase_clock.h"
#include "exec/session.h"
#include "exec/setup.h"
#include "program/schedule_timeline.h"

namespace ftrun {

/// Seconds of a stage in the same steps, of one rank or of all its ranks.
struct StageSeconds {
  /// For other stages.
  double waited = 0;
  /// Of each action of the stage's list in all its layers, and from the gradient norm to the decision.
  std::vector<double> actions;
  double after = 0;

  /// Of steps with this list; `layers` of the model. What comes before the first layer counts with the first action.
  void add(const PipelineSeconds& step, const std::vector<ScheduleAction>& list, const PipelineLayout& pipeline, int stage,
           int32_t layers);
  void add(const StageSeconds& other);
};

/// Of a stage's steps until the decision, what it waits for other stages.
struct IdleShare {
  /// In the run.
  double measured = 0;
  /// If nothing cost time but what stages do themselves, in the order of their lists: a walk that knows what each action
  /// took, and no wait. What holds up one action counts where it does, not in the mean of a phase.
  double by_schedule = 0;
};
std::vector<IdleShare> idle_shares(const StageActions& lists, ChunkPlacement placement,
                                   const std::vector<StageSeconds>& stages);

/// What each stage of a pipeline waits for the others in the steps of a run, beside what its schedule alone makes
/// it wait.
class PipelineUse {
 public:
  /// The setup is borrowed.
  explicit PipelineUse(TrainingSetup& setup);

  /// After each run of the training program. The first of several is not counted: memory comes with it.
  void end_step();
  /// Collective, after the last step: puts the ranks' figures together.
  void total(Session& session);

  /// A table, "" where there is nothing to tell.
  std::string text() const;
  /// RunManifest::pipeline.
  std::map<std::string, std::map<std::string, int64_t>> record() const;

 private:
  const StepOptions& options() const { return setup_.plan().options; }
  const PipelineLayout& pipeline() const { return options().state.pipeline; }

  TrainingSetup& setup_;
  /// Of all stages; none where there is one stage.
  StageActions lists_;
  int64_t steps_ = 0;
  StageSeconds sums_;
  /// By stage.
  std::vector<IdleShare> idle_;
};

}  // namespace ftrun
