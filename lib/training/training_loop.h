#pragma once

#include <cstdint>

#include "config/config.h"
#include "training/evaluation_clock.h"
#include "training/loop_parts.h"

namespace ftrun {

/// LoopPlan holds what the loop must know of the run before its first step.
struct LoopPlan {
  /// The schedule over all steps.
  SchedulerConfig lr_schedule;
  /// The number of steps of the whole run, resumed or not.
  int64_t total_steps = 0;
  /// This rank is rank 0, whose clock decides what is due by time.
  bool is_first = true;
};

/// TrainingLoop trains from `progress` to the end of the run: it decides which parts are called, in
/// which order, after which step. All ranks of a run make the same decisions, because they use only
/// state that is equal on all ranks.
class TrainingLoop {
 public:
  /// Borrows the config, the progress and everything that `parts` refers to.
  TrainingLoop(const Config& config, const LoopPlan& plan, TrainingProgress& progress,
               LoopParts parts);

  /// Trains. Collective: returns when all steps are done, the evaluations stop the run, or the
  /// ranks agree to stop, in which case the state has been saved. Throws Error(kNumerical) when too
  /// many steps are not finite, and the errors of parts; nothing of the step in progress is
  /// recorded or saved then.
  void run();
  /// Waits for the data's fingerprint and saves the last checkpoint. Collective, after run(). After
  /// a stop signal it saves at once.
  void save_last();

  /// Returns whether the run is over: no step is left, or the evaluations stop it.
  bool has_ended() const { return progress_.has_ended(plan_.total_steps); }

 private:
  StepMetrics train_step();
  StepMetrics metrics_of(const StepRun& step) const;
  void count_skipped(const StepRun& step);
  void warn_of_no_labels(const StepMetrics& metrics);
  void name_slow_ranks(const StepMetrics& metrics);
  void check_and_save();
  void check_replicas();
  void review_stop_lead();

  void evaluate_at_start();
  bool evaluation_is_due() const;
  bool evaluate(StepMetrics& metrics);
  void record_evaluation(const StepMetrics& metrics);
  void warn_of_uncounted_sets(const StepMetrics& metrics);

  const Config& config_;
  const LoopPlan plan_;
  TrainingProgress& progress_;
  const LoopParts parts_;
  EvaluationClock evaluation_clock_;
  /// Seconds that the longest comparison of replicas took.
  double longest_check_ = 0;
  bool warned_of_no_labels_ = false;
  bool warned_of_uncounted_sets_ = false;
};

}  // namespace ftrun
