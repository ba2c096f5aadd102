#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/setup.h"
#include "program/memory_plan.h"
#include "report/step_metrics.h"

namespace ftrun {

/// TierMemory is what was measured of one tier: what allocators gave, and what of it was ever in
/// use.
struct TierMemory {
  RankMemory::TierBytes allocated;
  RankMemory::TierBytes touched;
};

/// Memory of one rank as it was planned, as it was allocated and used, and as the process has it.
struct MemoryReport {
  MemoryPlan planned;
  std::array<TierMemory, kTiers.size()> tiers;
  /// Bytes that the process held before the first of it was allocated, when its libraries had their
  /// own working memory: a cost of the program and the machine, not of the model.
  int64_t fixed = 0;
  /// The most bytes of peers, while a collective runs.
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
};

MemoryReport report_memory(const TrainingSetup& setup, int64_t measured);

/// Predicted, allocated and touched bytes of every category and tier, and by how much what was
/// touched (what was allocated, where pages are not shown) is off what was predicted; the process
/// below.
std::string memory_text(const MemoryReport& report);

/// Writes the report for run.json: "predicted", "allocated" and "touched" with "device_parameters",
/// "device_temporary", "device_total", ...; "process" with "fixed", "peers", "predicted",
/// "measured".
std::map<std::string, std::map<std::string, int64_t>> memory_record(const MemoryReport& report);

/// Bytes that are in use now, for metrics.jsonl: of what lives from step to step by category, of
/// the rest as "temporary"; of other tiers as "host_optimizer". Allocated ones where pages are not
/// shown.
std::vector<NamedBytes> memory_metrics(const RankMemory& memory);

/// The most that this process held (ProcessMemory::held) while it ran steps. The kernel knows the
/// peak of all resident pages only. Where a step raised that, the pages of mapped files, of which
/// it has as many at its end as in its midst, are taken off; peaks between steps, when checkpoints
/// are mapped to be read, are not looked at.
class PeakMemory {
 public:
  /// Around each step.
  void begin();
  void end();

  int64_t held() const { return held_; }

 private:
  int64_t resident_before_ = 0;
  int64_t held_ = 0;
};

}  // namespace ftrun
