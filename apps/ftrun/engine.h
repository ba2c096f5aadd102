#pragma once

#include "exec/train.h"

namespace ftrun {

/// Loads the engine (LibTorch and what needs it) and trains as one rank. Nothing else of ftrun
/// loads LibTorch, so that everything else starts at once.
int train_with_engine(const TrainRequest& request);

/// What main returns ends the process through this. Where the engine was loaded it does not return: output is flushed
/// and the process is gone, without the destructors of LibTorch, which take its tables of operators down entry by
/// entry, half as long as it took to load them.
int end_process(int exit_code);

}  // namespace ftrun
