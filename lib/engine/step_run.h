#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "data/micro_batch.h"
#include "engine/device_times.h"
#include "engine/rank_flags.h"
#include "kernels/step_scalars.h"
#include "optimizers/optimizer_config.h"

namespace ftrun {

/// StepSums holds the sums of a training step before its updates; they are equal on all ranks.
struct StepSums {
  /// The sum of token losses and the number of counted tokens.
  double loss_sum = 0;
  double counted_tokens = 0;
  /// The norm of the gradients as they are in memory. It is not finite if any gradient is not.
  double gradient_norm = 0;
};

/// StepDecision is the caller's decision, made from the sums.
struct StepDecision {
  /// Says whether the sums are finite; if not, instructions marked `if_finite` do not run.
  bool finite = true;
  /// The factor by which the update multiplies each gradient.
  float update_gradient_factor = 1;
  /// The gradient norm to report, which the executor passes on.
  double gradient_norm = 0;
};

/// StepPolicy decides on the update. It may use only its argument, and state that is equal on all
/// ranks, so that all ranks make the same decision.
using StepPolicy = std::function<StepDecision(const StepSums&)>;

/// StepResult holds the results of a training step. It is equal on all ranks, except for the
/// seconds.
struct StepResult {
  /// The number of ranks that set each flag.
  RankFlags flags_of_all_ranks;
  /// The sum of token losses over all ranks.
  double loss_sum = 0;
  /// The number of counted tokens over all ranks.
  double counted_tokens = 0;
  /// The gradient norm that the decision reports.
  double gradient_norm = 0;
  /// Says whether the decision found the sums finite, so the updates ran.
  bool finite = true;
  /// Seconds of communication with other ranks during which compute was idle; nothing on a GPU
  /// whose instructions are not timed.
  std::optional<double> exposed_communication_seconds;
};

/// StepRun holds the inputs of a training step besides the program, and its result.
struct StepRun {
  /// The batches, one for each kLoadBatch instruction.
  std::span<const MicroBatch> micro_batches;
  StepScalars scalars;
  /// The policy that answers kDecide, required. Each run calls it once, from the calling thread.
  StepPolicy policy;
  /// The optimizer's settings; weight decay applies to kUpdate instructions marked `decay`.
  OptimizerConfig optimizer;
  /// The flags of this rank, which are summed over all ranks together with the loss.
  RankFlags flags;
  /// Says whether the run records when each instruction runs (Executor::trace()).
  bool traced = false;
  /// The result of the last run.
  StepResult result;
};

/// ForwardResult holds the results of an evaluation. It is equal on all ranks. Programs without a
/// loss have none.
struct ForwardResult {
  /// The number of ranks that set each flag.
  RankFlags flags_of_all_ranks;
  /// The sum of token losses over all ranks.
  double loss_sum = 0;
  /// The number of counted tokens, over all ranks, whose label is the most likely token (argmax of
  /// the logits).
  double correct_tokens = 0;
};

/// ForwardRun holds the inputs of a run of a program that decides on no update (an evaluation, or
/// logits), and its result.
struct ForwardRun {
  /// The batches, one for each kLoadBatch instruction.
  std::span<const MicroBatch> micro_batches;
  /// The flags of this rank, which are summed over all ranks together with the loss.
  RankFlags flags;
  /// The result of the last run.
  ForwardResult result;
};

/// RunTrace says when each instruction of a run ran on this rank.
struct RunTrace {
  std::chrono::steady_clock::time_point begin;
  /// The interval of each instruction; it has no length if the instruction did not run. On
  /// CPUs the interval of a collective begins when this rank starts it.
  std::vector<RunInterval> instrs;
};

}  // namespace ftrun
