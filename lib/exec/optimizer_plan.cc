#include "exec/optimizer_plan.h"

#include <cmath>

#include "base/error.h"
#include "exec/learning_rate.h"

namespace ftrun {

std::variant<AdamOptions, SgdOptions> optimizer_options(const OptimizerConfig& config) {
  if (config.type == OptimizerType::kSgd) {
    SgdOptions options;
    options.momentum = static_cast<float>(config.momentum);
    options.dampening = static_cast<float>(config.dampening);
    options.weight_decay = static_cast<float>(config.weight_decay);
    options.nesterov = config.nesterov;
    return options;
  }
  require(config.type == OptimizerType::kAdamW || config.type == OptimizerType::kAdam,
          "other optimizers are refused when the config is read");
  return AdamOptions{static_cast<float>(config.eps), static_cast<float>(config.weight_decay),
                     config.decoupled_decay()};
}

StepScalars step_scalars_of(const OptimizerConfig& optimizer, const SchedulerConfig& lr_schedule,
                            int64_t k) {
  const ScheduledRate rate = scheduled_rate(lr_schedule, optimizer, k);
  const double beta1 = rate.beta1.value_or(optimizer.betas[0]);
  const double beta2 = rate.beta2.value_or(optimizer.betas[1]);
  StepScalars scalars;
  scalars.learning_rate = static_cast<float>(rate.learning_rate);
  scalars.beta1 = beta1;
  scalars.beta2 = beta2;
  if (optimizer.bias_correction) {
    scalars.bias_correction1 = static_cast<float>(1.0 - std::pow(beta1, static_cast<double>(k)));
    scalars.bias_correction2 = static_cast<float>(1.0 - std::pow(beta2, static_cast<double>(k)));
  }
  return scalars;
}

}  // namespace ftrun
