#pragma once

#include <cstdint>

#include "config/config.h"
#include "config/learning_rate.h"
#include "training/due_clock.h"
#include "training/loop_dependencies.h"

namespace ftrun {

/// LoopPlan holds facts about the run that the loop needs before its first step.
struct LoopPlan {
  LearningRateSchedule schedule;
  /// The number of steps of the whole run, resumed or not.
  int64_t total_steps = 0;
  /// Says whether this rank is rank 0, whose clock decides what is due by time.
  bool is_first = true;
};

/// TrainingLoop trains from `progress` to the end of the run. It decides which parts are called, in
/// which order and after which step. All ranks make the same decisions, because they use only state
/// that is equal on all ranks.
class TrainingLoop {
 public:
  /// Keeps references to the config, the progress and everything to which `dependencies` refers.
  TrainingLoop(const Config& config, const LoopPlan& plan, TrainingProgress& progress,
               LoopDependencies dependencies);

  /// Runs the training. Collective. Returns when all steps are done, when early stopping ends the
  /// run, or when the ranks agree to stop; in the last case the state has been saved. Throws
  /// Error(kNumerical) if too many steps are not finite, and the errors of the parts; the step in
  /// progress is then neither recorded nor saved.
  void run();
  /// Waits for the data's fingerprint and saves the last checkpoint. Collective; called after
  /// run(). After a stop signal it saves without waiting.
  void save_last();

  /// Returns the seconds of the longest save, including the comparison of replicas before it; 0 if
  /// nothing was saved.
  double longest_save_and_check_seconds() const;

  /// Returns whether the run is over: no step is left, or early stopping ends it.
  bool has_ended() const { return progress_.has_ended(plan_.total_steps); }

 private:
  StepMetrics train_step();
  StepMetrics metrics_of(const StepRun& step) const;
  void record_skipped(const StepRun& step);
  void warn_of_no_labels(const StepMetrics& metrics);
  void warn_of_slow_ranks(const StepMetrics& metrics);
  void check_and_save();
  void save_now();
  void report_unknown_data();
  void check_replicas();
  void warn_of_short_stop_lead();

  void evaluate_at_start();
  bool is_evaluation_due() const;
  bool evaluate(StepMetrics& metrics);
  void record_evaluation(const StepMetrics& metrics);
  void warn_of_uncounted_sets(const StepMetrics& metrics);

  const Config& config_;
  const LoopPlan plan_;
  TrainingProgress& progress_;
  const LoopDependencies dependencies_;
  DueClock evaluation_clock_;
  /// The step after which replicas were last compared; -1: they were not compared yet.
  int64_t checked_step_ = -1;
  /// The seconds of the longest comparison of replicas.
  double longest_check_seconds_ = 0;
  bool warned_of_no_labels_ = false;
  bool warned_of_uncounted_sets_ = false;
};

}  // namespace ftrun
