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

/// LearningRateSchedule is the learning-rate schedule of a run: the section scheduler, whose
/// total_num_steps is the number of the run's steps if no source sets it.
struct LearningRateSchedule {
  LearningRateSchedule(const SchedulerConfig& config, int64_t steps_of_run) : scheduler(config) {
    if (scheduler.total_num_steps == 0) scheduler.total_num_steps = steps_of_run;
  }

  SchedulerConfig scheduler;
};

/// Returns the learning rate of the optimizer step that is the run's `update`-th, counted from 1;
/// skipped steps do not count. DeepSpeed steps its schedulers after the optimizer, so the formula f
/// of a DeepSpeed schedule is evaluated at update - 2, where f(-1) is the initial value. The
/// formula of a schedule of transformers is evaluated at update - 1, as LambdaLR does. A schedule
/// with a last step needs its total_num_steps (LearningRateSchedule).
ScheduledRate scheduled_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer,
                             int64_t update);

/// Returns the learning rate that a schedule with a last step
/// (LearningRateScheduleTraits::has_last_step) keeps after it.
double final_learning_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer);

}  // namespace ftrun
