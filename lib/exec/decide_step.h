#pragma once

#include "exec/executor.h"

namespace ftrun {

struct DecisionOptions {
  /// What the gradients in memory are multiples of the true ones by (GradientScale::multiple).
  double gradient_multiple = 1;
  /// Longest gradient vector that the update takes (gradient_clipping); 0 does not clip.
  double clip_norm = 0;
};

/// Leaves a step out whose loss or gradients are not finite. Else brings the gradients back to
/// their true size and clips them by their global norm (Pascanu et al. 2013): times min(1,
/// clip_norm / norm), with 1e-6 added to the norm as DeepSpeed and PyTorch do.
StepDecision decide_step(const StepSums& sums, const DecisionOptions& options);
/// decide_step() with these options.
StepPolicy step_policy(const DecisionOptions& options);

}  // namespace ftrun
