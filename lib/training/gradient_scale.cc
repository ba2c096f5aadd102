#include "training/gradient_scale.h"

#include <algorithm>

namespace ftrun {

GradientScale gradient_scale(const Config& config, double loss_scale, double counted_tokens) {
  const ReductionConfig& reduction = config.reduction;
  const auto ranks = static_cast<double>(std::max<int64_t>(1, config.parallel.data));
  const double factor = reduction.gradient_predivide_factor;
  const bool divides_before = reduction.prescale_gradients || factor == 1.0;
  GradientScale scale;
  scale.unscale_divisor = loss_scale * (divides_before ? 1.0 : ranks / factor);
  if (counted_tokens > 0)
    scale.token_loss_factor = static_cast<float>(scale.unscale_divisor / counted_tokens);
  if (reduction.gradient_allreduce_op == AllreduceOp::kSum) scale.unscale_divisor /= ranks;
  return scale;
}

}  // namespace ftrun
