#pragma once

#include <string>

#include "config/config.h"

namespace ftrun {

/// Formats a resolved config as a JSON object with every key that ftrun uses. run.json records it,
/// so that two runs can be compared key by key.
std::string effective_json(const Config& config);

}  // namespace ftrun
