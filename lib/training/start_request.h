#pragma once

#include <optional>
#include <string>

#include "comm/rendezvous.h"
#include "inputs/train_request.h"

namespace ftrun {

/// Completes the request with facts that ranks know only once they are connected. `launch` is what
/// they read from the store of torchrun's agent, if it serves one. Ranks that torchrun restarted
/// resume the run that an earlier start of the same torchrun launch began.
TrainRequest complete_request(TrainRequest request, std::optional<TorchrunLaunch> launch);

/// Returns a name for the swap files that is unique for each run.
std::string unique_swap_name(const TrainRequest& request);

}  // namespace ftrun
