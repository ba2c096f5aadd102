#pragma once

#include <cstdint>
#include <optional>

#include "config/deepspeed_config.h"

namespace ftrun {

/// ScheduledRate is what a schedule sets for one optimizer step.
struct ScheduledRate {
  double learning_rate = 0;
  /// OneCycle cycles Adam's betas too.
  std::optional<double> beta1;
  std::optional<double> beta2;
};

/// Returns the learning rate of the k-th applied optimizer step, k = 1, 2, ... Skipped steps do not
/// count. DeepSpeed's types use f(k-2) of their formulas, f(-1) being the initial value (its
/// schedulers are stepped after the optimizer); ftrun's own types rise linearly from 0 over
/// warmup_num_steps and reach min_lr at step total_num_steps, as transformers' schedules do.
ScheduledRate scheduled_rate(const SchedulerConfig& lr_schedule, const OptimizerConfig& optimizer,
                             int64_t k);

}  // namespace ftrun
