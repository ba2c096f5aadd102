#pragma once

#include "engine/executor.h"
#include "engine/setup.h"
#include "training/session.h"
#include "training/skipped_steps.h"

namespace ftrun {

/// Runs a step that was not finite again (Executor::find_nonfinite) and puts together where the
/// ranks first met a value that is not. Collective.
NonfiniteSearch find_nonfinite(Session& session, TrainingSetup& setup, StepRun step);

}  // namespace ftrun
