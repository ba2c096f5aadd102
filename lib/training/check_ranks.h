#pragma once

#include "config/config.h"
#include "engine/setup.h"
#include "training/session.h"
#include "training/step_times.h"

namespace ftrun {

/// Collective: the checker before step 1, over the programs of all ranks (sim/class_plans.h); then
/// all ranks compare what they will do, before the first of their collectives. Error(kBug) for a
/// program that is wrong, Error(kUsage) naming the ranks whose program differs. Rank 0 gets what a
/// step is predicted to take.
PredictedStep check_ranks(const Config& config, const TrainingSetup& setup, Session& session);

}  // namespace ftrun
