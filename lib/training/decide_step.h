#pragma once

#include "engine/step_run.h"

namespace ftrun {

struct DecisionOptions {
  /// The factor by which the gradients in memory exceed the true ones
  /// (GradientScale::unscale_divisor).
  double gradient_divisor = 1;
  /// The maximum gradient norm (gradient_clipping); 0: gradients are not clipped.
  double clip_norm = 0;
};

/// Decides whether a step updates the weights. The step is skipped if its loss or gradients are not
/// finite. Otherwise the gradients are scaled back to their true size and clipped by their global
/// norm (Pascanu et al. 2013): they are multiplied by min(1, clip_norm / norm), with 1e-6 added to
/// the norm, as in DeepSpeed and PyTorch.
StepDecision decide_step(const StepSums& sums, const DecisionOptions& options);
/// Returns a function that calls decide_step() with these options.
StepPolicy step_policy(const DecisionOptions& options);

}  // namespace ftrun
