#include "training/decide_step.h"

#include <algorithm>
#include <cmath>

namespace ftrun {

StepDecision decide_step(const StepSums& sums, const DecisionOptions& options) {
  StepDecision decision;
  decision.finite = std::isfinite(sums.gradient_norm) && std::isfinite(sums.loss_sum);
  decision.gradient_norm = sums.gradient_norm / options.gradient_divisor;
  double clip = 1;
  if (options.clip_norm > 0)
    clip = std::min(1.0, options.clip_norm / (decision.gradient_norm + 1e-6));
  decision.update_gradient_factor = static_cast<float>(clip / options.gradient_divisor);
  return decision;
}

StepPolicy step_policy(const DecisionOptions& options) {
  return [options](const StepSums& sums) { return decide_step(sums, options); };
}

}  // namespace ftrun
