#pragma once

#include <cstdint>
#include <optional>

#include "config/deepspeed_config.h"

namespace ftrun {

/// ScheduledRate holds the values that a schedule sets for one optimizer step.
struct ScheduledRate {
  double learning_rate = 0;
  /// The betas of Adam, which OneCycle changes, too.
  std::optional<double> beta1;
  std::optional<double> beta2;
};

/// Returns the learning rate of the k-th applied optimizer step, k = 1, 2, ... Skipped steps do not
/// count. DeepSpeed's types evaluate their formulas f at k-2, f(-1) being the initial value,
/// because DeepSpeed steps its schedulers after the optimizer; transformers' types evaluate
/// theirs at k-1, as its LambdaLR does.
ScheduledRate scheduled_rate(const SchedulerConfig& lr_schedule, const OptimizerConfig& optimizer,
                             int64_t k);

}  // namespace ftrun
