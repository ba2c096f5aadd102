#pragma once

#include <cstdint>
#include <variant>

#include "config/config.h"
#include "kernels/kernels.h"

namespace ftrun {

/// The optimizer of a run as the kernels take it. Its state buffers: optimizer_state_kinds().
std::variant<AdamOptions, SgdOptions> optimizer_options(const OptimizerConfig& config);

/// Scalars of the k-th applied step (k from 1): learning rate, betas, bias corrections.
StepScalars step_scalars_of(const OptimizerConfig& optimizer, const SchedulerConfig& lr_schedule,
                            int64_t k);

}  // namespace ftrun
