#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/checkpoint_manifest.h"
#include "config/config.h"
#include "training/evaluation_record.h"
#include "training/skipped_steps.h"

namespace ftrun {

/// Returns the number of sequences on which `steps` steps train.
inline int64_t sequences_in_steps(int64_t steps, const Config& config) {
  return steps * config.train_batch_size;
}

/// TrainingProgress says how far training has advanced. A checkpoint contains it in addition to the
/// model's state.
struct TrainingProgress {
  explicit TrainingProgress(const Config& config) : skipped(config), evaluations(config) {}

  /// The number of steps done, including steps whose update was skipped.
  int64_t step = 0;
  /// The number of tokens that counted in the loss so far.
  int64_t tokens = 0;
  SkippedSteps skipped;
  EvaluationRecord evaluations;

  int64_t updates() const { return step - skipped.total(); }
  /// Returns whether no step of `total_steps` is left, or early stopping ends the run.
  bool has_ended(int64_t total_steps) const {
    return step >= total_steps || evaluations.should_stop();
  }
  /// Returns the reason why a run that has ended did so before its last step.
  std::string early_end_reason() const { return evaluations.stop_reason(); }

  /// Adds the progress to a checkpoint's record; restore() reads it back.
  void add_to(CheckpointMeta& meta) const;
  void restore(const CheckpointMeta& meta);
};

}  // namespace ftrun
