#include "training/training_progress.h"

#include <string>

#include "inputs/checkpoint_fields.h"

namespace ftrun {
namespace {

/// Reads the number of consecutive steps that were not finite; 0 if the checkpoint has none. The
/// text is trusted, because the checkpoint's checksum covers it.
int64_t consecutive_nonfinite_steps(const CheckpointMeta& meta) {
  const auto record = meta.extra.find(kNonfiniteRecord);
  return record == meta.extra.end() ? 0 : std::stoll(record->second);
}

}  // namespace

void TrainingProgress::add_to(CheckpointMeta& meta) const {
  meta.step = step;
  meta.skipped_steps = skipped.total();
  meta.tokens = tokens;
  meta.scheduler["last_batch_iteration"] = static_cast<double>(updates() - 1);
  meta.loss_scaler = skipped.scaler_state();
  meta.extra[kEvaluationRecord] = evaluations.text();
  if (skipped.consecutive() > 0)
    meta.extra[kNonfiniteRecord] = std::to_string(skipped.consecutive());
}

void TrainingProgress::restore(const CheckpointMeta& meta) {
  step = meta.step;
  tokens = meta.tokens;
  skipped.restore(meta.skipped_steps, meta.loss_scaler, consecutive_nonfinite_steps(meta));
  if (const auto record = meta.extra.find(kEvaluationRecord); record != meta.extra.end())
    evaluations.restore(record->second);
}

}  // namespace ftrun
