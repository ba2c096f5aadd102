#pragma once

#include "engine/lane_device.h"

namespace ftrun {

/// HostDevice runs the lanes of a CPU: the device tier is main memory, and the calling thread
/// does the work.
class HostDevice final : public LaneDevice {
 public:
  void begin_run(const StepScalars& scalars, bool) override { scalars_ = &scalars; }
  void begin_instr(const Instr&) override {}
  void end_instr(const Instr&) override {}
  bool waits_have_ended(const Instr&) override { return true; }
  bool is_asynchronous() const override { return false; }
  std::optional<DeviceTimes> wait_for_times() override { return std::nullopt; }
  std::vector<RunInterval> wait_for_intervals() override { return {}; }

  void clear(Lane lane, const TypedSpan& to) override;
  void write_f64(Lane lane, double* to, std::span<const double> numbers) override;
  void load(Lane lane, std::span<const void* const> from, std::span<const TypedSpan> to) override;
  void run_ops(const LayerGraph& graph, std::span<const Op> ops, std::span<void* const> storage,
               KernelContext context) override;
  void prepare_communicator(Lane, Communicator&) override {}
  void copy(Lane lane, const TypedSpan& from, const TypedSpan& to) override;
  void add(Lane lane, const TypedSpan& from, const TypedSpan& to) override;
  void sums_of_squares(Lane lane, std::span<const TypedSpan> from,
                       std::span<double* const> to) override;
  void update(Lane lane, const FlatUpdate& update, Tier tier,
              const OptimizerConfig& optimizer) override;
  void compute_scales(Lane lane, const FlatUpdate& update, Tier tier,
                      const OptimizerConfig& optimizer) override;
  void drain() override {}
  std::array<const double*, 2> read_f64(Lane lane, const TypedSpan& a, const TypedSpan& b) override;
  std::vector<int64_t> read_i32(Lane lane, const TypedSpan& numbers) override;
  void refresh_scalars(Lane) override {}
  bool is_finite(Lane lane, const TypedSpan& numbers) override;

 private:
  const StepScalars* scalars_ = nullptr;
};

}  // namespace ftrun
