#include "training/training_progress.h"

#include "inputs/resume_policy.h"

namespace ftrun {

void TrainingProgress::add_to(CheckpointMeta& meta) const {
  meta.step = step;
  meta.skipped_steps = skipped.total();
  meta.tokens = tokens;
  meta.scheduler["last_batch_iteration"] = static_cast<double>(updates() - 1);
  meta.loss_scaler = skipped.scaler_state();
  meta.extra[kEvaluationRecord] = evaluations.text();
}

void TrainingProgress::restore(const CheckpointMeta& meta) {
  step = meta.step;
  tokens = meta.tokens;
  skipped.restore(meta.skipped_steps, meta.loss_scaler);
  if (const auto record = meta.extra.find(kEvaluationRecord); record != meta.extra.end())
    evaluations.restore(record->second);
}

}  // namespace ftrun
