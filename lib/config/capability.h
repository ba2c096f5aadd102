#pragma once

#include <vector>

#include "config/config.h"

namespace ftrun {

/// Every valid wish of a resolved config that this build cannot fulfil. `cuda`: ranks compute on a
/// GPU.
std::vector<NotYet> missing_capabilities(const Config& config, bool cuda);

}  // namespace ftrun
