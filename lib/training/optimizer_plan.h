#pragma once

#include <cstdint>

#include "config/config.h"
#include "kernels/kernels.h"

namespace ftrun {

/// Returns the scalars of the k-th applied step (k from 1): learning rate, betas, bias corrections.
StepScalars step_scalars_of(const OptimizerConfig& optimizer, const SchedulerConfig& lr_schedule,
                            int64_t k);

}  // namespace ftrun
