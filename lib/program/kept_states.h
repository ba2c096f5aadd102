#pragma once

#include <vector>

#include "config/config.h"
#include "program/state_options.h"

namespace ftrun {

/// Lists the states that the optimizer of a config keeps for tensors; codes and their scales come
/// last.
std::vector<KeptState> kept_states(const Config& config);

}  // namespace ftrun
