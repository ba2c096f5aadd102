#pragma once

#include <vector>

#include "config/config.h"
#include "engine/setup.h"
#include "training/session.h"
#include "training/step_time_comparison.h"

namespace ftrun {

/// PlanSummary holds what the plans of all ranks say about the run.
struct PlanSummary {
  /// The predicted time of a step; set on rank 0.
  PredictedStep predicted_step;
  /// The ranks that are traced, in ascending order; empty if no step is traced.
  std::vector<int> traced_ranks;
};

/// Checks the programs of all ranks (sim/rank_class_plans.h) before step 1; then all ranks compare
/// their programs. Collective. Throws Error(kBug) for a wrong program, and Error(kUsage) that names
/// the ranks whose programs differ.
PlanSummary check_rank_programs(const Config& config, const TrainingSetup& setup, Session& session);

}  // namespace ftrun
