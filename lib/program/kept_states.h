#pragma once

#include <vector>

#include "config/config.h"
#include "program/state_options.h"

namespace ftrun {

/// The states that the optimizer of a config keeps of tensors, those that are codes with their
/// scales last.
std::vector<KeptState> kept_states(const Config& config);

}  // namespace ftrun
