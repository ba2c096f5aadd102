#pragma once

#include <vector>

#include "config/config.h"
#include "program/state_options.h"

namespace ftrun {

/// Lists the states that the optimizer of a config has for tensors; codes and their scales come
/// last.
std::vector<OptimizerStateSpec> list_optimizer_state_specs(const Config& config);

}  // namespace ftrun
