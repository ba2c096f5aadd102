#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "engine/device_times.h"
#include "engine/memory.h"
#include "kernels/kernels.h"
#include "optimizers/optimizer_config.h"
#include "program/program.h"

namespace ftrun {

struct LayerGraph;
struct Op;

/// TypedSpan is a range of consecutive elements of one dtype in memory, and the tier that holds it.
struct TypedSpan {
  std::byte* data = nullptr;
  DType dtype = DType::kU8;
  int64_t count = 0;
  Tier tier = Tier::kDevice;

  int64_t bytes() const { return count * dtype_bytes(dtype); }
  TypedSpan subspan(int64_t first, int64_t elements) const {
    return {data + first * dtype_bytes(dtype), dtype, elements, tier};
  }
};

/// Returns the span of a range of one of the programs that `memory` holds.
inline TypedSpan span_of(const Program& program, const RankMemory& memory,
                         const BufferRange& range) {
  const Buffer& buffer = program.at(range.buffer);
  return {memory.at(program, range), buffer.format.dtype, element_count(program, range),
          buffer.tier};
}

/// LaneDevice does the work of lanes on memory. The executor decides which instruction is next and
/// what it does; the device decides where and how the work runs. On the host a call does the work
/// itself. On a GPU a call enqueues work of the device tier in the stream of its lane, and does
/// work of the host tier at once. Every function except begin_run() is called from the thread of
/// its lane, unless its comment names another caller.
class LaneDevice {
 public:
  virtual ~LaneDevice() = default;

  /// Begins a run, before any lane starts. `scalars` is borrowed for the run. If the run is
  /// `traced`, an asynchronous device records when each instruction begins and ends.
  virtual void begin_run(const StepScalars& scalars, bool traced) = 0;
  /// Begins an instruction, even one that is skipped; end_instr() ends it. LaneThreads ensures that
  /// the instructions for which it waits have left their own lanes.
  virtual void begin_instr(const Instr& instr) = 0;
  virtual void end_instr(const Instr& instr) = 0;
  /// Returns whether the instructions for which `instr` waits have ended, not only started.
  virtual bool waits_have_ended(const Instr& instr) = 0;
  /// Returns whether instructions may still run after the lanes' threads have started them: the
  /// times of those threads then do not show how long instructions run.
  virtual bool is_asynchronous() const = 0;
  /// Waits for the last run, and returns its times if the device measures them (GpuOptions::timed),
  /// else nothing.
  virtual std::optional<DeviceTimes> wait_for_times() = 0;
  /// Waits for the last run, and returns the interval of each instruction if an asynchronous device
  /// has recorded them.
  virtual std::vector<RunInterval> wait_for_intervals() = 0;

  virtual void clear(Lane lane, const TypedSpan& to) = 0;
  /// Writes numbers to `to`; `numbers` may change once this returns.
  virtual void write_f64(Lane lane, double* to, std::span<const double> numbers) = 0;
  /// Copies host data to the device, `to[i].count` elements each. The data may change once this
  /// returns.
  virtual void load(Lane lane, std::span<const void* const> from,
                    std::span<const TypedSpan> to) = 0;
  /// Runs operations. `context` has no scalars; the scalars of the run are used.
  virtual void run_ops(const LayerGraph& graph, std::span<const Op> ops,
                       std::span<void* const> storage, KernelContext context) = 0;
  /// Prepares the group's communicator for the collectives of an instruction on this lane.
  virtual void prepare_communicator(Lane lane, Communicator& group) = 0;
  /// Copies a span to another, converting the dtype, within a tier or between tiers.
  virtual void copy(Lane lane, const TypedSpan& from, const TypedSpan& to) = 0;
  virtual void add(Lane lane, const TypedSpan& from, const TypedSpan& to) = 0;
  /// Computes *to[i] = sum of squares of from[i]; `to` lies on the device tier.
  virtual void sums_of_squares(Lane lane, std::span<const TypedSpan> from,
                               std::span<double* const> to) = 0;
  virtual void update(Lane lane, const FlatUpdate& update, Tier tier,
                      const OptimizerConfig& optimizer) = 0;
  /// Computes the new scales (compute_scales() of kernels.h) of the values that update() will
  /// write.
  virtual void compute_scales(Lane lane, const FlatUpdate& update, Tier tier,
                              const OptimizerConfig& optimizer) = 0;

  // Returns whether the device can capture instructions. If it can, one thread may run instructions
  // [first, last) in program order between begin_capture() and end_capture(), which captures their
  // device work instead of doing it. replay() does the captured work, as often as wanted, after
  // earlier and before later work of the compute lane.
  virtual bool can_capture() const { return false; }
  virtual void begin_capture(InstrId first) { static_cast<void>(first); }
  virtual void end_capture() {}
  virtual void replay(size_t number) { static_cast<void>(number); }
  /// Destroys all captured graphs, including one that an error has interrupted. Call it before the
  /// groups of the program are closed or aborted.
  virtual void drop_captures() {}
  /// Stages inputs until the next replay(): load() and write_f64() then only copy their data to
  /// where the first captured graph reads it, and must be called in the order of the capture.
  virtual void stage_inputs() {}

  /// Waits until the work of all lanes is over; called by the thread that runs the program, when
  /// its lanes have finished.
  virtual void drain() = 0;
  /// Waits, and returns host addresses of the F64 numbers of two spans of the device tier. They are
  /// readable until the lane's next call.
  virtual std::array<const double*, 2> read_f64(Lane lane, const TypedSpan& a,
                                                const TypedSpan& b) = 0;
  /// Waits, and returns I32 numbers of the device tier.
  virtual std::vector<int64_t> read_i32(Lane lane, const TypedSpan& numbers) = 0;
  /// Makes later work of the lane use the present values of the scalars given to begin_run().
  virtual void refresh_scalars(Lane lane) = 0;
  /// Waits, and returns whether all numbers are finite: F64, F32, BF16 or F16.
  virtual bool is_finite(Lane lane, const TypedSpan& numbers) = 0;
};

/// Makes the device that works on `memory`. All arguments are borrowed. `groups` are the program's
/// groups: they show whether a wait for the device failed because a peer is lost.
std::unique_ptr<LaneDevice> make_lane_device(const Program& program, const RankMemory& memory,
                                             const std::vector<Communicator*>& groups);

}  // namespace ftrun
