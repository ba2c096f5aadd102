#pragma once

#include "config/config.h"

namespace ftrun {

/// GradientScale holds the factors that scale a step's gradients between the loss and the update.
struct GradientScale {
  /// The factor of the gradient of each token's loss before backward; 0 if no token counts.
  float token_loss_factor = 0;
  /// The gradients in memory and in communication, divided by the gradients that the update uses.
  double unscale_divisor = 1;
};

/// Computes the factors of a step. `loss_scale` is the loss scale of fp16 training, else 1;
/// `counted_tokens` is the number of counted tokens of the global batch. DeepSpeed divides each
/// rank's gradients by gradient_predivide_factor before they are summed, and by ranks / factor
/// afterwards; ftrun divides them by the number of ranks before the sum, unless the config sets a
/// factor and turns prescaling off. With gradient_allreduce_op "sum" the update uses the sum over
/// ranks of each rank's average.
GradientScale gradient_scale(const Config& config, double loss_scale, double counted_tokens);

}  // namespace ftrun
