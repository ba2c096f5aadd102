#include "training/scheduled_scalars.h"

#include <cmath>

#include "config/learning_rate.h"

namespace ftrun {

StepScalars scheduled_scalars(const OptimizerConfig& optimizer, const SchedulerConfig& lr_schedule,
                              int64_t k) {
  const ScheduledRate rate = scheduled_rate(lr_schedule, optimizer, k);
  const double beta1 = rate.beta1.value_or(optimizer.betas[0]);
  const double beta2 = rate.beta2.value_or(optimizer.betas[1]);
  StepScalars scalars;
  scalars.update = k;
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
