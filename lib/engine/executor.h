#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cluster/progress_board.h"
#include "engine/communication_runner.h"
#include "engine/disk_requests.h"
#include "engine/lane_device.h"
#include "engine/lanes.h"
#include "engine/memory.h"
#include "engine/nonfinite_probe.h"
#include "engine/phase_clock.h"
#include "engine/rank_communicators.h"
#include "engine/rank_flags.h"
#include "engine/step_run.h"
#include "kernels/kernels.h"
#include "model/description.h"
#include "optimizers/optimizer_config.h"
#include "program/loss_slots.h"
#include "program/program.h"
#include "program/update_operands.h"

namespace ftrun {

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

  /// CapturedConstants holds the inputs of a step that a captured graph holds as constants. All
  /// others are scalars, or data of the micro-batches, which each replay copies.
  struct CapturedConstants {
    OptimizerConfig optimizer;
    /// The positions in the run, in tokens, at which the micro-batches begin.
    std::vector<int64_t> first_tokens;
    bool operator==(const CapturedConstants&) const = default;
  };

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
  static CapturedConstants captured_constants(const StepRun& step);
  void time_instr(const Instr& instr);
  void run_instr(const Instr& instr);
  void clear(const Instr& instr);
  void run_begin(const Instr& instr);
  void load_batch(const Instr& instr);
  void run_ops(const Instr& instr);
  void copy(const Instr& instr);
  bool may_start_disk(InstrId id);
  /// Returns whether the step runs its updates; call it after the decision. A step that only
  /// searches for values that are not finite updates nothing.
  bool runs_updates() const { return step_->result.finite && probe_ == nullptr; }
  void accumulate(const Instr& instr);
  void run_gradient_norm(const Instr& instr);
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
  ProgressBoard* board_;
  std::unique_ptr<LaneDevice> device_;
  std::vector<Activity> activities_;
  const CommunicationRunner communication_;
  /// Addresses of a list's values, by instruction.
  std::map<const Instr*, std::vector<void*>> storage_;
  /// The spans whose squares the gradient norm sums, and the addresses of the sums.
  std::vector<TypedSpan> gradient_norm_parts_;
  std::vector<double*> gradient_norm_sums_;
  std::optional<TypedSpan> loss_;
  /// Says whether the program has a kDecide instruction.
  bool decides_ = false;
  /// The loss buffer of this run, once all its sums are final.
  std::optional<std::array<double, kLossSlots>> loss_slots_;
  /// The present run, and its search for values that are not finite; null where there is none.
  StepRun* step_ = nullptr;
  NonfiniteProbe* probe_ = nullptr;
  std::optional<DeviceTimes> times_;
  RunTrace trace_;
  /// Says whether the lanes record the times of this run's instructions.
  bool lanes_trace_ = false;
  /// Seconds by lane and kind of instruction; by lane, because lanes write at the same time.
  std::vector<std::array<double, kInstrKinds>> seconds_;
  DiskRequestQueue disk_;
  bool has_run_ = false;
  /// The inputs with which the program was captured; nothing if it is not.
  std::optional<CapturedConstants> captured_;
  PhaseClock phases_;
  LaneThreads lanes_;
};

}  // namespace ftrun
