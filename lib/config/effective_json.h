#pragma once

#include <string>

#include "config/config.h"

namespace ftrun {

/// Writes a resolved config as a JSON object, every key that ftrun uses with its value: run.json
/// keeps it, so that two runs can be compared key by key.
std::string effective_json(const Config& config);

}  // namespace ftrun
