#include "training/scheduled_scalars.h"

#include <cmath>

namespace ftrun {

StepScalars scheduled_scalars(const OptimizerConfig& optimizer,
                              const LearningRateSchedule& schedule, int64_t update) {
  const ScheduledRate rate = scheduled_rate(schedule.scheduler, optimizer, update);
  const double beta1 = rate.beta1.value_or(optimizer.betas[0]);
  const double beta2 = rate.beta2.value_or(optimizer.betas[1]);
  StepScalars scalars;
  scalars.update = update;
  scalars.learning_rate = static_cast<float>(rate.learning_rate);
  scalars.beta1 = beta1;
  scalars.beta2 = beta2;
  if (optimizer.bias_correction) {
    scalars.bias_correction1 =
        static_cast<float>(1.0 - std::pow(beta1, static_cast<double>(update)));
    scalars.bias_correction2 =
        static_cast<float>(1.0 - std::pow(beta2, static_cast<double>(update)));
  }
  return scalars;
}

}  // namespace ftrun
