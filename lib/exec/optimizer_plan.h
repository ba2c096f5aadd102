#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "config/config.h"
#include "kernels/kernels.h"

namespace ftrun {

/// The optimizer of a run as the kernels take it.
struct OptimizerPlan {
  /// Names of its flat state buffers, as checkpoints call them: {"exp_avg", "exp_avg_sq"}.
  std::vector<std::string> state_kinds;
  std::variant<AdamOptions, SgdOptions> options;
};

OptimizerPlan plan_optimizer(const OptimizerConfig& config);

/// Scalars of the k-th applied step (k from 1): learning rate, betas, bias corrections.
StepScalars step_scalars_of(const OptimizerConfig& optimizer, const SchedulerConfig& schedule, int64_t k);

}  // namespace ftrun
