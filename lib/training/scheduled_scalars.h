#pragma once

#include <cstdint>

#include "config/config.h"
#include "config/learning_rate.h"
#include "kernels/kernels.h"

namespace ftrun {

/// Returns the scalars of the optimizer step that is the run's `update`-th, counted from 1 without
/// skipped steps: learning rate, betas, bias corrections.
StepScalars scheduled_scalars(const OptimizerConfig& optimizer,
                              const LearningRateSchedule& schedule, int64_t update);

}  // namespace ftrun
