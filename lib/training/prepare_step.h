#pragma once

#include "config/config.h"
#include "config/learning_rate.h"
#include "data/micro_batch.h"
#include "engine/step_run.h"
#include "training/training_progress.h"

namespace ftrun {

/// Prepares the step that follows `progress`: the scalars of the schedule, the loss scale and the
/// clipping. The result refers to `batch`, which must outlive it.
StepRun prepare_step(const Config& config, const LearningRateSchedule& schedule,
                     const TrainingProgress& progress, const StepBatch& batch);

}  // namespace ftrun
