#pragma once

#include "engine/executor.h"

namespace ftrun {

struct DecisionOptions {
  /// Factor by which the gradients in memory exceed the true ones (GradientScale::multiple).
  double gradient_multiple = 1;
  /// Maximum norm of the gradient (gradient_clipping); 0 does not clip.
  double clip_norm = 0;
};

/// Leaves out a step whose loss or gradients are not finite. Otherwise the gradients are brought
/// back to their true size and clipped by their global norm (Pascanu et al. 2013): times min(1,
/// clip_norm / norm), with 1e-6 added to the norm as DeepSpeed and PyTorch do.
StepDecision decide_step(const StepSums& sums, const DecisionOptions& options);
/// Makes a policy that calls decide_step() with these options.
StepPolicy step_policy(const DecisionOptions& options);

}  // namespace ftrun
