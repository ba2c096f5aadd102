#include "training/prepare_step.h"

#include "training/decide_step.h"
#include "training/gradient_scale.h"
#include "training/scheduled_scalars.h"

namespace ftrun {

StepRun prepare_step(const Config& config, const LearningRateSchedule& schedule,
                     const TrainingProgress& progress, const StepBatch& batch) {
  StepRun step;
  step.micro_batches = batch.micro_batches;
  step.scalars = scheduled_scalars(config.optimizer, schedule, progress.updates() + 1);
  const GradientScale scale = gradient_scale(config, progress.skipped.loss_scale(),
                                             static_cast<double>(batch.counted_tokens_global));
  step.scalars.token_loss_factor = scale.token_loss_factor;
  const auto seed = static_cast<uint64_t>(config.train.seed);
  step.scalars.rounding_key = rounding_key(seed, progress.step + 1);
  step.scalars.dropout_key = dropout_key(seed, progress.step + 1);
  step.policy = step_policy(
      {.gradient_divisor = scale.unscale_divisor, .clip_norm = config.gradient_clipping});
  step.optimizer = config.optimizer;
  step.traced = is_traced(config.train.trace, progress.step + 1);
  return step;
}

}  // namespace ftrun
