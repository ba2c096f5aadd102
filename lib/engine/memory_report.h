#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/setup.h"
#include "program/memory_plan.h"

namespace ftrun {

/// TierMemory holds the bytes of one tier: those that allocators provided and, measured, how many
/// of these were ever in use.
struct TierMemory {
  RankMemory::TierBytes allocated;
  RankMemory::TierBytes touched;
};

/// MemoryReport compares the memory of one rank as planned, as allocated, as measured in use, and
/// as its process holds it.
struct MemoryReport {
  MemoryPlan planned;
  std::array<TierMemory, kTiers.size()> tiers;
  /// Bytes that the process held before any weights were in memory, when its libraries had their
  /// working memory already, and on a CPU the programs had their executors: a cost of the program
  /// and the machine, not of the model.
  int64_t baseline_bytes = 0;
  /// The maximum number of bytes of peers' memory that are mapped while a collective runs.
  int64_t peer_bytes = 0;
  /// An upper bound on the further memory of a process that trains: the heap of the loader and of
  /// records, the kernels' buffers of each thread, the communicators' buffers, and the memory of an
  /// export (tests/bench/memory_bench.py).
  int64_t working_bytes = 0;
  /// The largest number of bytes of private and shared memory that the process held while it
  /// trained.
  int64_t measured_bytes = 0;

  /// The free and total bytes of the GPU's memory, which is the device tier, at the end; 0 on CPUs.
  DeviceMemory gpu;

  bool on_gpu() const { return gpu.total_bytes > 0; }
  int64_t planned_in_main_memory() const {
    return on_gpu() ? planned.at(Tier::kHost).total : planned.main_memory_bytes();
  }
  int64_t predicted_bytes() const {
    return planned_in_main_memory() + baseline_bytes + peer_bytes + working_bytes;
  }
};

/// Compares predicted and measured memory. `additional_bytes` is an upper bound on the bytes that
/// the run allocates in addition to its setup: for batches, checkpoints and the export. `measured`
/// is the peak.
MemoryReport report_memory(const TrainingSetup& setup, int64_t additional_bytes, int64_t measured);

/// Lists predicted, allocated and measured bytes of every category and tier, and by how much the
/// measured bytes (or allocated bytes, where pages are not reported) differ from the prediction.
/// Lines about the whole process follow below.
std::string memory_text(const MemoryReport& report);

/// Returns the report for run.json: "predicted", "allocated" and "touched" with
/// "device_parameters", "device_temporary", "device_total", ...; "process" with "fixed", "peers",
/// "working", "predicted", "measured"; "gpu" on a GPU.
std::map<std::string, std::map<std::string, int64_t>> memory_record(const MemoryReport& report);

/// MemoryMetric is the bytes in use of a part of a rank's memory, by its name in metrics.jsonl.
struct MemoryMetric {
  std::string name;
  int64_t bytes = 0;
};

/// Returns the bytes that are in use now, for metrics.jsonl: persistent ones by category, the rest
/// as "temporary", and other tiers with the tier's name, as "host_optimizer". Where pages are not
/// reported, these are the allocated bytes.
std::vector<MemoryMetric> memory_metrics(const RankMemory& memory);

/// PeakMemory measures the maximum memory that this process held (ProcessMemory::held_bytes())
/// while it ran steps. The kernel reports only the peak of all resident pages. If a step raised
/// that peak, PeakMemory subtracts the pages of mapped files that are resident at the step's end.
/// Peaks between steps, when checkpoints are mapped to be read, are ignored.
class PeakMemory {
 public:
  /// Begins a step, which end_step() ends.
  void begin_step();
  void end_step();

  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  int64_t resident_before_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace ftrun
