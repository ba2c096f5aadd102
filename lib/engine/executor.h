#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cluster/progress_board.h"
#include "data/batch.h"
#include "engine/disk_requests.h"
#include "engine/lane_device.h"
#include "engine/lanes.h"
#include "engine/memory.h"
#include "engine/nonfinite_probe.h"
#include "engine/phase_clock.h"
#include "engine/rank_communicators.h"
#include "engine/rank_flags.h"
#include "kernels/kernels.h"
#include "model/description.h"
#include "optimizers/optimizer_config.h"
#include "program/loss_slots.h"
#include "program/program.h"
#include "program/update_operands.h"

namespace ftrun {

/// StepSums holds the sums of a training step before its updates; they are equal on all ranks.
struct StepSums {
  /// The sum of token losses and the number of counted tokens.
  double loss = 0;
  double counted_tokens = 0;
  /// The norm of the gradients as they are in memory. It is not finite if any gradient is not.
  double gradient_norm = 0;
};

/// StepDecision is the caller's decision, made from the sums.
struct StepDecision {
  /// The sums are finite; otherwise instructions marked `if_finite` do not run.
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
  /// For each flag, the number of ranks that set it.
  RankFlags flags_of_all_ranks;
  /// The sum of token losses over all ranks.
  double loss_sum = 0;
  /// The number of counted tokens over all ranks.
  double counted_tokens = 0;
  /// The gradient norm that the decision reports.
  double gradient_norm = 0;
  /// The decision found the sums finite, so the updates ran.
  bool finite = true;
  /// Seconds of communication with other ranks during which compute was idle; nothing on a GPU
  /// whose instructions are not timed.
  std::optional<double> exposed_communication_seconds;
};

/// StepRun holds the inputs of a training step besides the program, and its result.
struct StepRun {
  /// The batches, one for each kLoadBatch instruction.
  std::span<const Batch> micro_batches;
  StepScalars scalars;
  /// The policy that answers kDecide, required. Each run calls it once, from the calling thread.
  StepPolicy decide;
  /// The optimizer's settings; weight decay applies to kUpdate instructions marked `decay`.
  OptimizerConfig optimizer;
  /// The flags of this rank, which are summed over all ranks together with the loss.
  RankFlags flags;
  /// The run records when each instruction runs (Executor::trace()).
  bool traced = false;
  /// The result of the last run.
  StepResult result;
};

/// ForwardResult holds the results of an evaluation. It is equal on all ranks. Programs without a
/// loss have none.
struct ForwardResult {
  /// For each flag, the number of ranks that set it.
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
  std::span<const Batch> micro_batches;
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
  std::vector<Interval> instrs;
};

/// Executor runs one program on this rank's lanes. It knows instructions, but no ZeRO stages or
/// models: the lists of a graph say what a layer computes, and bindings say where its values lie in
/// memory.
class Executor {
 public:
  /// Borrows all arguments for this object's life. RankMemory::allocate() must have been called for
  /// `program`.
  Executor(const Program& program, const ModelDescription& model, const RankMemory& memory,
           const RankCommunicators& communicators);

  /// Runs a training step. Collective: every rank of the group calls this with its own
  /// micro-batches.
  void run(StepRun& step);
  /// Runs a program that decides on no update. Collective, like run().
  void run_forward(ForwardRun& forward);

  /// Repeats a training step that was not finite, and returns where this rank first finds a value
  /// that is not. Weights and state have not changed, so the values are the same again. The
  /// repetition changes no weight or state, even if the step is now finite (`step.result.finite`).
  /// Collective.
  NonfiniteLocation find_nonfinite(StepRun& step);

  /// Destroys the device's captured graphs of the program; the next run captures the program again.
  void drop_captures();

  /// Returns the seconds that the last run spent in instructions, by kind. Lanes run at the same
  /// time, so the sum may exceed the duration of the run. On a GPU that is not timed, these are the
  /// seconds of the host threads that started the instructions.
  std::array<double, kInstrKinds> seconds_by_kind() const;
  /// Returns the seconds of the last run of a training program that is a stage of a pipeline.
  const PipelineSeconds& pipeline_seconds() const { return phases_.seconds(); }
  /// Returns the times of the last run that was traced (StepRun::traced).
  const RunTrace& trace() const { return trace_; }
  /// Returns the times of the last run on a GPU that is timed (GpuOptions::timed).
  const std::optional<DeviceTimes>& device_times() const { return times_; }

 private:
  class RunScope;

  // A run calls these functions, from the outside in: run() or find_nonfinite() calls run_step();
  // run_step() or run_forward() calls run_program(); that starts all lanes
  // (LaneThreads::run_once()), or run_captured(), which replays captured graphs; a lane calls
  // time_instr() for each of its instructions, which calls run_instr(), which calls the function of
  // the instruction's kind.

  /// Runs a training step. With a probe it looks for a value that is not finite, and updates
  /// nothing.
  void run_step(StepRun& step, NonfiniteProbe* probe);
  void run_program(StepRun& step, NonfiniteProbe* probe);
  void begin_trace();
  void end_trace();
  void run_captured(const StepRun& step);
  void capture();
  void time_instr(const Instr& instr);
  void run_instr(const Instr& instr);
  void clear(const Instr& instr);
  void begin(const Instr& instr);
  void load_batch(const Instr& instr);
  void run_ops(const Instr& instr);
  void run_collective(const Instr& instr);
  Work start_collective(const Instr& instr, size_t index, Communicator& group);
  void move_counted(const Instr& instr, Communicator& group);
  void run_transfer(const Instr& instr);
  void copy(const Instr& instr);
  bool may_start_disk(InstrId id);
  /// Returns whether the step runs its updates; call it after the decision. A step that only
  /// searches for values that are not finite updates nothing.
  bool updates() const { return step_->result.finite && probe_ == nullptr; }
  void accumulate(const Instr& instr);
  void gradient_norm(const Instr& instr);
  void decide(const Instr& instr);
  void compute_scales(const Instr& instr);
  void update(const Instr& instr);
  UpdateOperands operands_of(const Instr& instr) const;
  FlatUpdate flat_update(const Instr& instr, const UpdateOperands& operands) const;
  void plan_gradient_norm(const Instr& instr);
  void copy_loss_slots(const double* loss);
  /// Returns a sum of the loss buffer, once copy_loss_slots() has copied it.
  template <typename Sum>
  double loss_sum_at(Sum sum) const {
    return (*loss_slots_)[static_cast<size_t>(loss_slot(sum))];
  }
  RankFlags flags_of_all_ranks() const;
  DType dtype(const BufferRange& range) const { return program_.at(range.buffer).format.dtype; }
  TypedSpan span_of(const BufferRange& range) const {
    return ftrun::span_of(program_, memory_, range);
  }
  template <typename T>
  T* address(const BufferRange& range) const {
    return reinterpret_cast<T*>(memory_.at(program_, range));
  }

  const Program& program_;
  const ModelDescription& model_;
  const RankMemory& memory_;
  /// The communicators by GroupId.
  std::vector<Communicator*> communicators_;
  ProgressBoard* board_;
  std::unique_ptr<LaneDevice> device_;
  std::vector<Activity> activities_;
  /// Addresses of a list's values, by instruction.
  std::map<const Instr*, std::vector<void*>> storage_;
  /// The spans whose squares the gradient norm sums, and the addresses of the sums.
  std::vector<TypedSpan> gradient_norm_parts_;
  std::vector<double*> gradient_norm_sums_;
  std::optional<TypedSpan> loss_;
  /// The program has a kDecide instruction.
  bool decides_ = false;
  /// The loss buffer of this run, once all its sums are final.
  std::optional<std::array<double, kLossSlots>> loss_slots_;
  /// The present run, and its search for values that are not finite; null where there is none.
  StepRun* step_ = nullptr;
  NonfiniteProbe* probe_ = nullptr;
  std::optional<DeviceTimes> times_;
  RunTrace trace_;
  /// The lanes record the times of this run's instructions.
  bool lanes_trace_ = false;
  /// Seconds by lane and kind of instruction; by lane, because lanes write at the same time.
  std::vector<std::array<double, kInstrKinds>> seconds_;
  DiskRequestQueue disk_;
  /// The number of runs so far.
  int64_t runs_ = 0;
  /// The optimizer settings with which the program was captured; all other inputs of a step are in
  /// the scalars.
  std::optional<OptimizerConfig> captured_optimizer_;
  /// The positions in the run, in tokens, at which the captured micro-batches begin.
  std::vector<int64_t> captured_tokens_;
  PhaseClock phases_;
  LaneThreads lanes_;
};

}  // namespace ftrun
