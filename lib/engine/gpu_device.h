#pragma once

#include <map>
#include <optional>

#include "engine/gpu.h"
#include "engine/host_device.h"
#include "engine/lane_device.h"
#include "program/step_builder.h"

namespace ftrun {

/// GpuDevice runs the lanes of a GPU. A lane's thread enqueues the device's work in the lane's
/// stream. An instruction that depends on another lane's work makes its stream wait, while the host
/// continues. Host code (disk copies, updates and sums of state in the host tier) waits on the host
/// for the events that it needs and for all work in its own lane's stream, so that the order of
/// work is the same as on a CPU. Events, streams and staging are made once, not in each step.
class GpuDevice final : public LaneDevice {
 public:
  GpuDevice(const Program& program, Gpu& gpu, std::vector<Communicator*> groups);
  ~GpuDevice() override { drop_captures(); }

  void begin_run(const StepScalars& scalars, bool traced) override;
  void begin_instr(const Instr& instr) override;
  void end_instr(const Instr& instr) override;
  bool waits_have_ended(const Instr& instr) override;
  bool is_asynchronous() const override { return true; }
  std::optional<DeviceTimes> wait_for_times() override;
  std::vector<RunInterval> wait_for_intervals() override;

  void clear(Lane lane, const TypedSpan& to) override;
  void write_f64(Lane lane, double* to, std::span<const double> numbers) override;
  void load(Lane lane, std::span<const void* const> from, std::span<const TypedSpan> to) override;
  void run_ops(const LayerGraph& graph, std::span<const Op> ops, std::span<void* const> storage,
               KernelContext context) override;
  void prepare_communicator(Lane lane, Communicator& group) override;
  void copy(Lane lane, const TypedSpan& from, const TypedSpan& to) override;
  void add(Lane lane, const TypedSpan& from, const TypedSpan& to) override;
  void sums_of_squares(Lane lane, std::span<const TypedSpan> from,
                       std::span<double* const> to) override;
  void update(Lane lane, const FlatUpdate& update, Tier tier,
              const OptimizerConfig& optimizer) override;
  void compute_scales(Lane lane, const FlatUpdate& update, Tier tier,
                      const OptimizerConfig& optimizer) override;
  bool can_capture() const override { return can_capture_; }
  void begin_capture(InstrId first) override;
  void end_capture() override;
  void replay(size_t number) override;
  void drop_captures() override;
  void stage_inputs() override;
  void drain() override;
  std::array<const double*, 2> read_f64(Lane lane, const TypedSpan& a, const TypedSpan& b) override;
  std::vector<int64_t> read_i32(Lane lane, const TypedSpan& numbers) override;
  void refresh_scalars(Lane lane) override;
  bool is_finite(Lane lane, const TypedSpan& numbers) override;

 private:
  /// HostAction is a member function of HostDevice that processes a piece of device data after it
  /// was copied to the host.
  using HostAction = void (HostDevice::*)(Lane lane, const TypedSpan& piece, const TypedSpan& to);

  DeviceKernels& kernels() const { return gpu_.kernels(); }
  InstrId id_of(const Instr& instr) const {
    return static_cast<InstrId>(&instr - program_.instrs.data());
  }
  Tier tier(const BufferRange& range) const { return program_.at(range.buffer).tier; }
  bool crosses_tiers(const Instr& instr) const;
  bool works_on_host(const Instr& instr) const;
  void plan_instr(const Instr& instr);
  bool runs_all_on_device() const;
  void stage_input(void* to, const void* from, int64_t bytes, DeviceStream stream);
  void wait_for(DeviceStream stream);
  void check_groups();
  void end_broken_capture();
  void make_events();
  void make_timings();
  void make_staging();
  void apply_on_host(Lane lane, const TypedSpan& from, const TypedSpan& to, HostAction action);
  void convert_to_device(Lane lane, const TypedSpan& from, const TypedSpan& to);
  double read_double(Lane lane, const void* address);
  bool doubles_are_finite(Lane lane, const TypedSpan& numbers);
  void send_scalars(DeviceStream stream);

  const Program& program_;
  Gpu& gpu_;
  const std::vector<Communicator*> groups_;
  /// The device that works on memory in the host tier.
  HostDevice host_;
  const StepScalars* scalars_ = nullptr;
  /// Holds for each instruction, by id, whether host code runs it (works_on_host()).
  std::vector<char> on_host_;
  std::vector<std::string> labels_;
  /// The events of the instructions for which other instructions wait.
  std::map<InstrId, GpuEvent> done_;
  struct Timing {
    GpuEvent begin;
    GpuEvent end;
  };
  /// The timing events of each instruction, made before the first timed run.
  std::vector<Timing> timings_;
  std::optional<GpuEvent> run_begin_;
  /// Says whether the times of this run are recorded.
  bool is_timed_ = false;

  /// The sizes that plan_instr() found necessary, in bytes or elements, and the number of sums on
  /// the host.
  int64_t batch_bytes_ = 0;
  int64_t fetched_doubles_ = kLossSlots;
  int64_t summed_elements_ = 0;
  int64_t host_sums_ = 0;

  /// InputMode describes how load() and write_f64() treat their data: they send it, capture it, or
  /// stage it for a replay.
  enum class InputMode { kSend, kCapture, kStage };
  InputMode input_mode_ = InputMode::kSend;
  bool can_capture_ = false;
  /// The first instruction of the current capture: all instructions before it are over when it is
  /// replayed.
  InstrId captured_from_ = 0;
  struct Capture {
    DeviceGraph graph;
    /// The captured collectives, by group.
    std::vector<std::vector<CollectiveRecord>> collectives;
  };
  std::vector<Capture> captures_;
  /// The pinned memory of the batches and numbers that a captured run reads, in their order.
  /// input_bytes_ is the size of all of them, staged_bytes_ the size of those staged so far.
  GpuBlock captured_inputs_;
  std::optional<GpuEvent> inputs_read_;
  int64_t input_bytes_ = 0;
  int64_t staged_bytes_ = 0;

  GpuBlock device_scalars_;
  GpuBlock norm_scratch_;
  /// The pinned memory into which read_f64() and is_finite() copy; only the compute lane calls
  /// them.
  GpuBlock fetched_;
  /// Memory of one F64.
  GpuBlock probe_;
  std::optional<PinnedRing> scalar_ring_;
  std::optional<PinnedRing> f64_ring_;
  std::optional<PinnedRing> batch_ring_;
  std::optional<PinnedRing> sum_ring_;
  /// The pinned ring of each lane for data that moves between the device and the host tier.
  std::vector<std::optional<PinnedRing>> transfer_rings_;
  /// The pinned memory of each lane into which read_i32() copies its result, and the maximum number
  /// of counts of the lane's instructions.
  std::vector<GpuBlock> counts_;
  std::vector<int64_t> max_counts_;
};

}  // namespace ftrun
