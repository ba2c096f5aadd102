#pragma once

#include <string>

#include "config/config.h"

namespace ftrun {

/// A resolved config as a JSON object, every key ftrun uses with its value: what run.json keeps, so
/// that two runs can be compared key by key.
std::string effective_json(const Config& config);

}  // namespace ftrun
