#pragma once

#include "config/config.h"

namespace ftrun {

/// Counts the neighbours among the state ranks that keep secondary shards between them
/// (StateOptions::secondary_shards).
int secondary_shards(const Config& config);

}  // namespace ftrun
