#pragma once

#include <cstdint>

namespace ftrun {

/// StepScalars holds the scalars that change from step to step. Kernels read them at one fixed
/// address, so programs and captured graphs never change.
struct StepScalars {
  /// The factor of a token's loss: 1 / counted tokens of the global batch, times the loss scale in
  /// fp16.
  float token_loss_factor = 1.0F;
  float learning_rate = 0.0F;
  /// The index of this step among those that update, from 1.
  int64_t update = 1;
  /// The betas. They are doubles, because with beta2 rounded to float, 1 - beta2 would be wrong in
  /// the fifth digit.
  double beta1 = 0.9;
  double beta2 = 0.999;
  /// The bias corrections 1 - beta1^t and 1 - beta2^t of this step, computed in double (1 without
  /// bias correction).
  float bias_correction1 = 1.0F;
  float bias_correction2 = 1.0F;
  /// The factor of gradients before the update: min(1, clip / (norm + 1e-6)), or 1; in fp16 divided
  /// by the loss scale with which the gradients were computed (norm is the norm without it).
  float update_gradient_factor = 1.0F;
  /// The key of this step's stochastic rounding (rounding_key()).
  uint64_t rounding_key = 0;
  /// The key of this step's dropout (dropout_key()).
  uint64_t dropout_key = 0;
};

}  // namespace ftrun
