#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "engine/replica_check.h"
#include "engine/setup.h"
#include "training/check_rank_programs.h"
#include "training/loop_dependencies.h"
#include "training/resource_use.h"
#include "training/session.h"
#include "training/slow_ranks.h"
#include "training/step_time_comparison.h"
#include "training/step_tracer.h"

namespace ftrun {

/// RunStepper runs the steps of a rank's training program on its executor.
class RunStepper : public Stepper {
 public:
  /// Finds the state of which several ranks hold copies. Collective. Keeps references to all
  /// arguments except `summary`.
  RunStepper(const Config& config, Session& session, TrainingSetup& setup, Journal& journal,
             PlanSummary summary);

  void run(StepRun& step) override;
  void add_memory_and_traffic(StepMetrics& metrics) const override {
    resource_use_.add_memory_and_traffic(metrics);
  }
  void record_measurements(const StepMetrics& metrics) override;
  NonfiniteSearchResult find_nonfinite(const StepRun& step) override;
  std::vector<std::string> find_slow_ranks(const StepMetrics& metrics) override;
  void check_replicas(int64_t step) override;

  ResourceUse& resource_use() { return resource_use_; }
  const StepTimeComparison& times() const { return times_; }
  /// Averages the measured times over the ranks that have the same work as rank 0. Collective.
  void average_times();
  /// Returns the measurement of other work on this machine since the run began.
  const CpuLoadWatch& cpu_load_watch() const { return cpu_load_watch_; }

 private:
  void open_replica_check(const Config& config, Journal& journal);
  void open_slow_ranks(const Config& config);

  Session& session_;
  TrainingSetup& setup_;
  ResourceUse resource_use_;
  StepTimeComparison times_;
  std::optional<StepTracer> tracer_;
  CpuLoadWatch cpu_load_watch_;
  std::optional<ReplicaCheck> replicas_;
  std::optional<SlowRankFinder> slow_ranks_;
};

}  // namespace ftrun
