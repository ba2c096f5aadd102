#pragma once

#include "exec/executor.h"
#include "exec/session.h"
#include "exec/setup.h"
#include "exec/skipped_steps.h"

namespace ftrun {

/// Collective: runs a step that was not finite again (Executor::find_nonfinite) and puts together
/// where the ranks first met a value that is not.
NonfiniteSearch find_nonfinite(Session& session, TrainingSetup& setup, StepRun step);

}  // namespace ftrun
