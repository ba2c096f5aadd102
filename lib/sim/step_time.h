#pragma once

#include <string>

#include "machine/machine.h"
#include "sim/class_plans.h"
#include "sim/step_trace.h"
#include "sim/timed_walk.h"

namespace ftrun {

/// StepTime is what a training step takes on a machine, in seconds of rank 0 (its stage's, in a
/// pipeline).
struct StepTime {
  /// Seconds of the rank that ends last.
  double seconds = 0;
  /// Operations of layers.
  double layers = 0;
  double update = 0;
  /// All else that compute does itself: norm, copies, clears.
  double other = 0;
  /// Compute stood still for collectives, for other stages, for copies between tiers, for the disk.
  double communication = 0;
  double stages = 0;
  double copies = 0;
  double disk = 0;
};

/// Predicts a step of the run on `nodes` nodes of the machine, by a walk of all ranks' programs in
/// which each instruction takes what its operations, bytes or exchange take there. Ranks that are
/// alike are walked as one where they share no processors. A step's batch is taken as loaded, rows
/// as full and of one document. Error(kUsage) where the machine lacks a rate that the run needs.
/// `trace` gets what the lowest rank of each class does.
StepTime predict_step(const ClassPlans& all, const Machine& machine, int64_t nodes,
                      StepTrace* trace = nullptr);

/// The prediction as `ftrun plan` prints it: time by part, tokens a second, and the share of the
/// machine's products that are of the model, by `flops_per_token` (Chowdhery et al. 2022, "PaLM",
/// appendix B); 0: not known.
std::string step_time_text(const StepTime& time, const Machine& machine, int ranks, int64_t tokens,
                           double flops_per_token, DType dtype);

}  // namespace ftrun
