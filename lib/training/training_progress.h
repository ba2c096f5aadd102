#pragma once

#include <cstdint>

#include "checkpoint/checkpoint_manifest.h"
#include "config/config.h"
#include "training/evaluation_record.h"
#include "training/skipped_steps.h"

namespace ftrun {

/// TrainingProgress holds how far training has advanced: the content of a checkpoint besides the
/// model's state.
struct TrainingProgress {
  explicit TrainingProgress(const Config& config) : skipped(config), evaluations(config) {}

  /// The number of steps done, including those whose update was left out.
  int64_t step = 0;
  /// The number of tokens that have counted in a loss.
  int64_t tokens = 0;
  SkippedSteps skipped;
  EvaluationRecord evaluations;

  int64_t updates() const { return step - skipped.total(); }
  /// Returns whether no step of `total_steps` is left, or the evaluations stop the run.
  bool has_ended(int64_t total_steps) const { return step >= total_steps || evaluations.stops(); }

  /// Writes the progress into a checkpoint's record; restore() reads it back.
  void add_to(CheckpointMeta& meta) const;
  void restore(const CheckpointMeta& meta);
};

}  // namespace ftrun
