#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "exec/setup.h"
#include "program/memory_plan.h"
#include "report/step_metrics.h"

namespace ftrun {

/// Memory of one rank as it was planned, as it was allocated, and as the process has it.
struct MemoryReport {
  MemoryPlan planned;
  std::array<RankMemory::Allocated, kTiers.size()> allocated;
  /// What the process held before the first of it was allocated: libraries, threads, data.
  int64_t fixed = 0;
  /// Of peers, at most, while a collective runs.
  int64_t peers = 0;
  /// The most that the process held while it trained, of its own and shared memory.
  int64_t measured = 0;

  /// The device tier is the GPU's memory, of which this much was free and there at the end; 0 on a
  /// processor.
  DeviceMemory gpu;

  bool on_gpu() const { return gpu.total_bytes > 0; }
  int64_t planned_in_main_memory() const {
    return on_gpu() ? planned.at(Tier::kHost).total : planned.main_memory();
  }
  int64_t predicted() const { return planned_in_main_memory() + fixed + peers; }
  /// (measured - predicted) / predicted.
  double error() const;
};

MemoryReport report_memory(const TrainingSetup& setup, int64_t measured);

/// Predicted, allocated and error of every category and tier, to the byte; the process below.
std::string memory_text(const MemoryReport& report);

/// The same for run.json: "predicted" and "allocated" with "device_parameters", "device_arenas",
/// "device_total", ...; "process" with "fixed", "peers", "predicted", "measured".
std::map<std::string, std::map<std::string, int64_t>> memory_record(const MemoryReport& report);

/// Bytes by category, at its own fullest moment, for metrics.jsonl: of the device by their names, of
/// other tiers as "host_optimizer".
std::vector<NamedBytes> memory_metrics(const TrainingSetup& setup);

/// The most that this process held (ProcessMemory::held) since this was made. The kernel knows the
/// peak of all resident pages only, so the pages of mapped files, of which a training loop has as
/// many always, are taken off.
class PeakMemory {
 public:
  PeakMemory();
  int64_t held() const;

 private:
  int64_t resident_before_;
};

}  // namespace ftrun
