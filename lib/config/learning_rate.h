#pragma once

#include <cstdint>
#include <optional>

#include "config/deepspeed_config.h"

namespace ftrun {

/// ScheduledRate holds the values that a schedule sets for one optimizer step.
struct ScheduledRate {
  double learning_rate = 0;
  /// The betas of Adam; set only by OneCycle, which changes them.
  std::optional<double> beta1;
  std::optional<double> beta2;
};

/// Returns the learning rate of the k-th applied optimizer step, k = 1, 2, ...; skipped steps do
/// not count. DeepSpeed steps its schedulers after the optimizer, so the formula f of a DeepSpeed
/// schedule is evaluated at k-2, where f(-1) is the initial value. The formula of a schedule of
/// transformers is evaluated at k-1, as LambdaLR does.
ScheduledRate scheduled_rate(const SchedulerConfig& lr_schedule, const OptimizerConfig& optimizer,
                             int64_t k);

/// Returns the learning rate that a schedule with a last step (SchedulerTraits::has_total) keeps
/// after it.
double last_rate(const SchedulerConfig& lr_schedule, const OptimizerConfig& optimizer);

}  // namespace ftrun
