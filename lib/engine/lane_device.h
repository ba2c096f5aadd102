#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "engine/memory.h"
#include "kernels/kernels.h"
#include "optimizers/optimizer_config.h"
#include "program/program.h"

namespace ftrun {

struct LayerGraph;
struct Op;

/// TypedSpan is consecutive elements of one dtype at an address, and the tier that they lie in.
struct TypedSpan {
  std::byte* data = nullptr;
  DType dtype = DType::kU8;
  int64_t count = 0;
  Tier tier = Tier::kDevice;

  int64_t bytes() const { return count * dtype_bytes(dtype); }
  TypedSpan part(int64_t first, int64_t elements) const {
    return {data + first * dtype_bytes(dtype), dtype, elements, tier};
  }
};

/// Interval is the time in which an instruction ran, in seconds from the beginning of its run.
struct Interval {
  double begin = 0;
  double end = 0;

  bool operator==(const Interval&) const = default;
};

/// DeviceTimes holds the times of a run's instructions on a device, in seconds.
struct DeviceTimes {
  std::array<double, kInstrKinds> by_kind{};
  /// Time in which one or several collectives ran and compute did not.
  double exposed_communication = 0;
  /// Seconds of copies between the tiers device and host: all, and those during which compute
  /// worked.
  double copies = 0;
  double hidden_copies = 0;
};

/// LaneDevice does the work of lanes on memory: the executor knows which instruction comes next and
/// what it means, the device knows where it runs. On the host a call does the work. On a GPU a call
/// puts work of the device tier into the stream of its lane, and does work of the host tier at
/// once. Every call but begin_run() comes from the thread of its lane, unless its comment says
/// otherwise.
class LaneDevice {
 public:
  virtual ~LaneDevice() = default;

  /// Begins a run, before any lane works. `scalars` is borrowed for the run. An asynchronous device
  /// notes when each instruction of a run that is `traced` begins and ends.
  virtual void begin_run(const StepScalars& scalars, bool traced) = 0;
  /// Begins an instruction, also one that is left out; leave() ends it. Lanes has made sure that
  /// the instructions it waits for have left their own lanes.
  virtual void enter(const Instr& instr) = 0;
  virtual void leave(const Instr& instr) = 0;
  /// Says whether the instructions that `instr` waits for have ended, not only been started.
  virtual bool waits_are_over(const Instr& instr) = 0;
  /// Says whether instructions still run when the lanes' threads have started them and gone on: the
  /// times of those threads say nothing then.
  virtual bool is_asynchronous() const = 0;
  /// Waits, and returns the times of the last run if the device measures them (GpuOptions::timed),
  /// else nothing.
  virtual std::optional<DeviceTimes> times() = 0;
  /// Waits, and returns when each instruction of the last run ran, if an asynchronous device has
  /// noted it.
  virtual std::vector<Interval> intervals() = 0;

  virtual void clear(Lane lane, const TypedSpan& to) = 0;
  /// Writes numbers to `to`; `numbers` may change when this returns.
  virtual void put(Lane lane, double* to, std::span<const double> numbers) = 0;
  /// Copies host data of any lifetime, `to[i].count` elements each: it may change when this
  /// returns.
  virtual void load(Lane lane, std::span<const void* const> from,
                    std::span<const TypedSpan> to) = 0;
  /// Runs operations. `context` comes without the scalars, which are those of the run.
  virtual void run_ops(const LayerGraph& graph, std::span<const Op> ops,
                       std::span<void* const> storage, KernelContext context) = 0;
  /// Attaches a group before the collectives of an instruction.
  virtual void attach(Lane lane, Communicator& group) = 0;
  /// Copies between tiers and dtypes.
  virtual void copy(Lane lane, const TypedSpan& from, const TypedSpan& to) = 0;
  virtual void add(Lane lane, const TypedSpan& from, const TypedSpan& to) = 0;
  /// Computes *to[i] = sum of squares of from[i]; `to` lies on the device tier.
  virtual void sums_of_squares(Lane lane, std::span<const TypedSpan> from,
                               std::span<double* const> to) = 0;
  virtual void update(Lane lane, const FlatUpdate& update, Tier tier,
                      const OptimizerConfig& optimizer) = 0;
  /// Runs measure_codes() for the values that update() writes with new scales.
  virtual void measure(Lane lane, const FlatUpdate& update, Tier tier,
                       const OptimizerConfig& optimizer) = 0;

  // Recording: where can_record(), one thread may go through instructions [first, last) in program
  // order between begin_recording() and end_recording(), which records their device work instead of
  // doing it. replay() does it, as often as wanted, after the work on the compute lane; later work
  // there comes after it.
  virtual bool can_record() const { return false; }
  virtual void begin_recording(InstrId first) { static_cast<void>(first); }
  virtual void end_recording() {}
  virtual void replay(size_t recording) { static_cast<void>(recording); }
  /// Destroys all recordings, also one that an error has cut short. Call it before the groups of
  /// the program are closed or given up.
  virtual void drop_recordings() {}
  /// Stages inputs from here to the next replay(): load() and put() only leave their data where the
  /// first recording reads it; they must come in its order.
  virtual void stage_inputs() {}

  /// Waits until the work of all lanes is over; called by the thread that runs the program, when
  /// its lanes have finished.
  virtual void drain() = 0;
  /// Waits, and makes F64 numbers of the device tier readable until the lane's next call.
  virtual std::array<const double*, 2> fetch(Lane lane, const TypedSpan& a, const TypedSpan& b) = 0;
  /// Waits, and returns I32 numbers of the device tier.
  virtual std::vector<int64_t> counts(Lane lane, const TypedSpan& numbers) = 0;
  /// Notes that the scalars given to begin_run() have changed.
  virtual void scalars_changed(Lane lane) = 0;
  /// Waits, and says whether all numbers are finite (F64: only one number).
  virtual bool is_finite(Lane lane, const TypedSpan& numbers) = 0;
};

/// Makes the device that `memory` belongs to. All arguments are borrowed. `groups` are those of the
/// program: a wait for a device may have ended because a peer is lost.
std::unique_ptr<LaneDevice> make_lane_device(const Program& program, const RankMemory& memory,
                                             const std::vector<Communicator*>& groups);

}  // namespace ftrun
