#pragma once

#include "exec/train.h"

namespace ftrun {

/// Loads the engine (LibTorch and what needs it) and trains as one rank. Nothing else of ftrun
/// loads LibTorch, so that everything else starts at once.
int train_with_engine(const TrainRequest& request);

}  // namespace ftrun
