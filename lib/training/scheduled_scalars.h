#pragma once

#include <cstdint>

#include "config/config.h"
#include "kernels/kernels.h"

namespace ftrun {

/// Returns the scalars of the k-th applied step (k from 1): learning rate, betas, bias corrections.
StepScalars scheduled_scalars(const OptimizerConfig& optimizer, const SchedulerConfig& lr_schedule,
                              int64_t k);

}  // namespace ftrun
