#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/memory_report.h"
#include "engine/setup.h"
#include "engine/step_traffic.h"
#include "report/run_manifest.h"
#include "report/step_metrics.h"
#include "training/pipeline_idle_time.h"
#include "training/session.h"

namespace ftrun {

/// ResourceUse measures the memory, link traffic and disk traffic of a run, around each training
/// step.
class ResourceUse {
 public:
  /// Borrows config and setup.
  ResourceUse(const Config& config, TrainingSetup& setup)
      : config_(config), setup_(setup), traffic_(setup), pipeline_(setup) {}

  /// Begins a run of the training program, which end_step() ends.
  void begin_step();
  void end_step(bool finite);
  /// Returns the seconds during which the last step waited for its disk requests, including time in
  /// which other work ran.
  double disk_wait_seconds() const { return disk_wait_seconds_; }
  /// Adds the resources in use and the bytes moved in the step.
  void add_memory_and_traffic(StepMetrics& metrics) const;

  /// Sums the measurements over the ranks, and finds the rank that needed the most memory.
  /// Collective. Called after the last step, but before checkpoints and exports, which map whole
  /// files temporarily.
  void sum_over_ranks(Session& session);
  /// Adds the totals to the manifest.
  void write_totals(RunManifest& manifest) const;
  std::vector<std::string> summary_lines(int ranks) const;

 private:
  void sum_memory(Session& session);
  void sum_traffic(Session& session);
  int64_t bytes_sent() const;
  std::string stage_memory_text() const;
  double total_disk_wait_seconds() const;

  const Config& config_;
  TrainingSetup& setup_;
  PeakMemory peak_;
  StepTraffic traffic_;
  PipelineIdleTime pipeline_;
  double disk_wait_seconds_ = 0;
  /// The peak memory of the rank that needed most: resident bytes, bytes held (anonymous and shared
  /// memory), and bytes of mapped files.
  int64_t peak_resident_bytes_ = 0;
  int64_t peak_held_bytes_ = 0;
  int64_t peak_file_backed_bytes_ = 0;
  std::optional<MemoryReport> memory_;
  /// The memory of each pipeline stage: memory_metrics() of the stage's first rank, and "process",
  /// the maximum memory that its process held.
  std::vector<std::map<std::string, int64_t>> stage_memory_;
  /// The traffic of all ranks; absent if no step ran.
  std::optional<TrafficSums> traffic_of_all_ranks_;
};

}  // namespace ftrun
