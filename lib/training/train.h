#pragma once

#include "inputs/train_request.h"

namespace ftrun {

/// Trains as one rank of the job. Returns the exit code: 0, or the exit code of a stop by a signal.
/// Throws an Error if training fails.
int train(const TrainRequest& request);

}  // namespace ftrun
