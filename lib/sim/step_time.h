#pragma once

#include <string>

#include "machine/machine.h"
#include "sim/class_plans.h"
#include "sim/step_trace.h"
#include "sim/timed_walk.h"

namespace ftrun {

/// StepTime is the predicted time of a training step, in seconds: until the slowest rank ends, and
/// of rank 0 by what it does.
struct StepTime {
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
  /// Floating-point operations a second of the products that all ranks could make; 0: not known.
  double products = 0;
};

/// RunPlace is where a run's ranks are: on so many nodes, as many on each, with so many threads
/// each (0: as the machine file has it).
struct RunPlace {
  int64_t nodes = 1;
  int64_t threads = 0;
};

/// Predicts a step of the run on the machine, by a walk of all ranks' programs in which each
/// instruction takes what its operations, bytes or exchange take there. Ranks of GPUs that are
/// alike are walked as one. A step's batch is taken as loaded, rows as full and of one document.
/// `trace` gets what the lowest rank of each class does. Error(kUsage) where the machine is of
/// another device, or lacks a rate that the run needs.
StepTime predict_step(const ClassPlans& all, const Machine& machine, const RunPlace& place,
                      StepTrace* trace = nullptr);

/// The prediction as `ftrun plan` prints it: time by part, tokens a second, and model FLOPs
/// utilization by `flops_per_token` (Chowdhery et al. 2022, "PaLM", appendix B); 0: not known.
std::string step_time_text(const StepTime& time, const Machine& machine, int64_t tokens,
                           double flops_per_token);

}  // namespace ftrun
