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

#include "cluster/progress.h"
#include "data/loader.h"
#include "engine/lane_device.h"
#include "engine/lanes.h"
#include "engine/memory.h"
#include "engine/phase_clock.h"
#include "engine/rank_groups.h"
#include "engine/votes.h"
#include "kernels/kernels.h"
#include "model/description.h"
#include "optimizers/optimizer_config.h"
#include "program/program.h"

namespace ftrun {

/// StepSums holds the sums of a training step before its updates: the same numbers on all ranks.
struct StepSums {
  /// Sum of token losses and number of counted tokens.
  double loss = 0;
  double counted_tokens = 0;
  /// The norm of the gradients as they are in memory. It is not finite if one of them is not.
  double gradient_norm = 0;
};

/// StepDecision is the caller's decision, made from the sums.
struct StepDecision {
  /// The sums are finite; otherwise the instructions marked `if_finite` are left out.
  bool finite = true;
  /// The factor of each gradient before it enters the update.
  float gradient_scale = 1;
  /// The norm to report; the executor passes it on.
  double gradient_norm = 0;
};

/// StepPolicy decides on the update. It may use only its argument and state that is identical on
/// every rank, so that all ranks decide alike.
using StepPolicy = std::function<StepDecision(const StepSums&)>;

/// StepRun holds the inputs of a step besides the program, and its results.
struct StepRun {
  /// A batch for each kLoadBatch instruction.
  std::span<const Batch> micro_batches;
  StepScalars scalars;
  /// The policy that answers kDecide. It is called once a run, from the calling thread; required
  /// where the program has a kDecide.
  StepPolicy decide;
  /// The optimizer's settings; weight decay applies to kUpdate instructions marked `decay`.
  OptimizerConfig optimizer;
  /// Votes of this rank, summed over all ranks together with the loss.
  Votes votes;
  /// The run notes when each instruction runs (Executor::trace()).
  bool traced = false;

  /// The votes of all ranks.
  Votes all_votes;
  /// Sum of token losses over all ranks.
  double loss_sum = 0;
  /// The number of counted tokens of a program that updates, over all ranks.
  double counted_tokens = 0;
  /// The number of counted tokens whose label is the likeliest token, of a program that does not
  /// update.
  double correct_tokens = 0;
  /// The norm of the decision.
  double gradient_norm = 0;
  /// The decision called the sums finite, so that the updates ran.
  bool finite = true;
  /// Seconds of communication with other ranks during which compute was idle; on a GPU known only
  /// where it is timed.
  std::optional<double> exposed_communication_seconds;
};

/// RunTrace says when each instruction of a run ran on this rank.
struct RunTrace {
  std::chrono::steady_clock::time_point begin;
  /// Intervals by instruction; those of instructions that were left out have no length. On
  /// processors that of a collective begins when this rank comes to it.
  std::vector<Interval> instrs;
};

/// NonfinitePlace is the place where a rank first met a value that is not finite.
struct NonfinitePlace {
  /// The instruction; -1: nowhere.
  InstrId instr = -1;
  /// "forward layer 3 mb 0 (layers.2): hidden"
  std::string text;
};

/// Executor runs one program on this rank's lanes. It knows instructions, not ZeRO stages or
/// models: the graph's lists say what a layer does, the bindings say where memory lies.
class Executor {
 public:
  /// Borrows all arguments for this object's life. `memory` must have allocated `program`.
  Executor(const Program& program, const ModelDescription& model, const RankMemory& memory,
           const RankGroups& groups);

  /// Runs the program. Collective: every rank of the group calls this with its own micro-batches.
  void run(StepRun& step);

  /// Runs a training step again that was not finite (weights and state have not changed, so all
  /// values come again) and says where this rank first meets a value that is not. Changes no weight
  /// or state, even where the step now comes out finite (`step.finite`). Collective.
  NonfinitePlace find_nonfinite(StepRun& step);

  /// Destroys the device's recordings of the program; the next run records it again.
  void drop_recordings();

  /// Returns the seconds that the last run spent in instructions, by kind; other lanes run beside
  /// compute. On a GPU that is not timed, they are those of the threads that started the
  /// instructions.
  std::array<double, kInstrKinds> seconds() const;
  /// Returns the seconds of the last run of a training program that is a stage of a pipeline.
  const PipelineSeconds& pipeline_seconds() const { return phases_.seconds(); }
  /// Returns the times of the last run that was traced (StepRun::traced).
  const RunTrace& trace() const { return trace_; }
  /// Returns the times of the last run on a GPU that is timed (GpuOptions::timed).
  const std::optional<DeviceTimes>& device_times() const { return times_; }

 private:
  void begin_trace();
  void end_trace();
  void run_recorded(const StepRun& step);
  void record();
  void run_timed(const Instr& instr);
  void run_instr(const Instr& instr);
  void clear(const Instr& instr);
  void begin(const Instr& instr);
  void load_batch(const Instr& instr);
  void run_ops(const Instr& instr);
  void note_nonfinite(const Instr& instr);
  std::string nonfinite_weights(const Instr& instr);
  void run_collective(const Instr& instr);
  Work start_collective(const Instr& instr, size_t index, Communicator& group);
  void move_counted(const Instr& instr, Communicator& group);
  void run_transfer(const Instr& instr);
  void copy(const Instr& instr);
  void copy_disk(const Instr& instr);
  void start_disk(size_t at);
  bool may_start_disk(InstrId id);
  /// Says whether the step updates, once its decision is made: a step that is only searched for
  /// nonfinite values updates nothing.
  bool updates() const { return step_->finite && !looks_for_nonfinite_; }
  void drop_disk_requests();
  void accumulate(const Instr& instr);
  void gradient_norm(const Instr& instr);
  void decide(const Instr& instr);
  void measure(const Instr& instr);
  void update(const Instr& instr);
  FlatUpdate flat_update(const Instr& instr) const;
  void plan_norm(const Instr& instr);
  void record_loss(const double* loss);
  DType dtype(const Range& range) const { return program_.at(range.buffer).dtype; }
  TypedSpan span_of(const Range& range) const;
  template <typename T>
  T* address(const Range& range) const {
    return reinterpret_cast<T*>(memory_.at(program_, range));
  }

  const Program& program_;
  const ModelDescription& model_;
  const RankMemory& memory_;
  /// The communicators by GroupId.
  std::vector<Communicator*> groups_;
  ProgressBoard* board_;
  std::unique_ptr<LaneDevice> device_;
  std::vector<Activity> shown_;
  /// Addresses of a list's values, by instruction.
  std::map<const Instr*, std::vector<void*>> storage_;
  /// The spans that the gradient norm sums, and the place of their sums.
  std::vector<TypedSpan> norm_parts_;
  std::vector<double*> norm_sums_;
  std::optional<TypedSpan> loss_;
  /// The program has a kDecide.
  bool decides_ = false;
  bool loss_recorded_ = false;
  StepRun* step_ = nullptr;
  std::optional<DeviceTimes> times_;
  RunTrace trace_;
  /// The lanes note the times of this run's instructions.
  bool lanes_trace_ = false;
  /// Times by lane, because lanes write at the same time, and kind.
  std::vector<std::array<double, kInstrKinds>> seconds_;
  /// Instructions of the disk lane, by instruction: the next one, where it may start early (else
  /// -1), and its request in progress.
  std::vector<InstrId> early_disk_;
  std::vector<std::optional<SwapFile::Ticket>> disk_tickets_;
  /// Runs so far.
  int64_t runs_ = 0;
  /// The optimizer that the recording was made with; all other inputs of a step are in the scalars.
  std::optional<OptimizerConfig> recorded_;
  /// Positions in the run at which the recorded micro-batches begin, in tokens.
  std::vector<int64_t> recorded_tokens_;
  bool looks_for_nonfinite_ = false;
  PhaseClock phases_;
  NonfinitePlace nonfinite_;
  Lanes lanes_;
};

}  // namespace ftrun
