#pragma once

#include "engine/setup.h"
#include "engine/step_run.h"
#include "training/session.h"
#include "training/skipped_steps.h"

namespace ftrun {

/// Repeats a step that was not finite (Executor::find_nonfinite), and collects the locations where
/// ranks first found a value that is not finite. Collective.
NonfiniteSearchResult find_nonfinite(Session& session, TrainingSetup& setup, StepRun step);

}  // namespace ftrun
