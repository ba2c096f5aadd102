#pragma once

#include <vector>

#include "config/config.h"
#include "engine/setup.h"
#include "training/session.h"
#include "training/step_times.h"

namespace ftrun {

/// CheckedRanks holds what the plans of all ranks say about the run.
struct CheckedRanks {
  /// The predicted time of a step; set on rank 0.
  PredictedStep predicted;
  /// The ranks that are traced, in order; empty where no step is traced.
  std::vector<int> traced;
};

/// Runs the checker over the programs of all ranks (sim/class_plans.h) before step 1. All ranks
/// then compare their programs before the programs' first collective. Collective. Throws
/// Error(kBug) for a wrong program, and Error(kUsage) naming the ranks whose program differs.
CheckedRanks check_ranks(const Config& config, const TrainingSetup& setup, Session& session);

}  // namespace ftrun
