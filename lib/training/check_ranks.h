#pragma once

#include "config/config.h"
#include "engine/setup.h"
#include "training/session.h"
#include "training/step_times.h"

namespace ftrun {

/// Runs the checker before step 1, over the programs of all ranks (sim/class_plans.h); then all
/// ranks compare their programs, before the first of their collectives. Collective. Error(kBug) for
/// a program that is wrong, Error(kUsage) naming the ranks whose program differs. Rank 0 gets the
/// predicted time of a step.
PredictedStep check_ranks(const Config& config, const TrainingSetup& setup, Session& session);

}  // namespace ftrun
