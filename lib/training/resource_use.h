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
#include "training/pipeline_use.h"
#include "training/session.h"

namespace ftrun {

/// ResourceUse measures how much memory, link traffic and disk traffic a run uses, around each
/// training step.
class ResourceUse {
 public:
  /// Borrows the setup.
  explicit ResourceUse(TrainingSetup& setup) : setup_(setup), traffic_(setup), pipeline_(setup) {}

  /// Begins a run of the training program, which end_step() ends.
  void begin_step();
  void end_step(bool finite);
  /// Returns the seconds during which the last step waited for its disk requests, whatever else ran
  /// meanwhile.
  double disk_wait_seconds() const { return disk_wait_; }
  /// Adds the resources in use and the bytes moved in the step.
  void add_to(StepMetrics& metrics) const;

  /// Sums the figures over the ranks, and finds the rank that needed most memory. Collective. Call
  /// it after the last step, and before checkpoints and exports map whole files for a moment.
  void total(Session& session);
  /// Adds the totals to the manifest.
  void add_to(RunManifest& manifest) const;
  std::vector<std::string> texts(int ranks) const;

 private:
  void total_memory(Session& session);
  void total_traffic(Session& session);
  int64_t bytes_sent() const;
  std::string stage_memory() const;
  double disk_waited() const;

  TrainingSetup& setup_;
  PeakMemory peak_;
  StepTraffic traffic_;
  PipelineUse pipeline_;
  double disk_wait_ = 0;
  /// The most bytes of the rank that needed most memory: resident, anonymous and shared, and of
  /// files.
  int64_t most_resident_ = 0;
  int64_t most_held_ = 0;
  int64_t most_of_files_ = 0;
  std::optional<MemoryReport> memory_;
  /// The memory of each pipeline stage: memory_metrics() of the stage's first rank, and "process",
  /// the most memory that its process held.
  std::vector<std::map<std::string, int64_t>> stages_;
  /// The traffic of all ranks; absent if there was no step.
  std::optional<TrafficSums> all_traffic_;
};

}  // namespace ftrun
