#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "machine/machine.h"
#include "model/model_config.h"
#include "program/step_plan.h"
#include "sim/step_time.h"

namespace ftrun {

/// RunEstimate holds estimates for a run, derived from its predicted step: utilization, hours and
/// cost. Fields that are 0 are unknown.
struct RunEstimate {
  double tokens_per_second = 0;
  /// Model FLOPs utilization (Chowdhery et al. 2022, "PaLM", appendix B): the arithmetic that the
  /// model needs (training_flops_per_token) divided by the arithmetic that all ranks could do.
  /// `mfu_causal` counts only the causal half of the attention scores.
  double mfu = 0;
  double mfu_causal = 0;
  /// Hardware FLOPs utilization (same source): `mfu` plus the share of arithmetic that backward
  /// recomputes.
  double hfu = 0;
  /// Steps of the whole run, and the hours that they take, without checkpoints, evaluations and
  /// start-up.
  int64_t steps = 0;
  double hours = 0;
  /// Hours multiplied by the number of devices that are paid for: the GPUs of all ranks, or all
  /// cores of the nodes.
  double device_hours = 0;
  /// Device-hours multiplied by the price of a device per hour (Machine::price).
  double cost = 0;
  /// Bytes of a checkpoint's tensors, of all ranks together.
  int64_t checkpoint_bytes = 0;
  /// Seconds to write a checkpoint if each node writes to one disk.
  double checkpoint_seconds = 0;
};

/// Counts the floating-point operations that backward recomputes for a token; 0 without recompute.
double recomputed_flops_per_token(const Config& config, const ModelConfig& model,
                                  const ModelDescription& trained);

/// Estimates a run of `steps` steps (0: not known) of a resolved config. `plan` may be the plan of
/// any rank.
RunEstimate estimate_run(const Config& config, const ModelConfig& model, const StepPlan& plan,
                         const StepTime& time, const Machine& machine, int64_t nodes,
                         int64_t steps);

/// Formats the prediction as `ftrun plan` prints it: the step by its parts, then the run. The run
/// writes a checkpoint every `checkpoint_every` steps; 0: not by steps.
std::string run_estimate_text(const RunEstimate& run, const StepTime& time, const Machine& machine,
                              int64_t checkpoint_every);

}  // namespace ftrun
