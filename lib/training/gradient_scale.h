#pragma once

#include "config/config.h"

namespace ftrun {

/// GradientScale holds the factors that a step's gradients are multiplied by on their way.
struct GradientScale {
  /// The factor of the gradient of a token's loss before backward; 0 if no token counts.
  float loss_scale = 0;
  /// The ratio of gradients in memory and on the wire to those that the update takes.
  double multiple = 1;
};

/// Computes the factors of a step. `loss_scale` is fp16's, 1 without; `counted_tokens` are those of
/// the global batch. DeepSpeed divides each rank's gradients by gradient_predivide_factor before
/// they are summed and by ranks / factor after it; here they are divided by the number of ranks
/// before, unless the config asks for a factor (and does not prescale, which makes it void). With
/// gradient_allreduce_op "sum" the update takes the sum over ranks of what each has averaged.
GradientScale gradient_scale(const Config& config, double loss_scale, double counted_tokens);

}  // namespace ftrun
