#pragma once

#include "config/config.h"

namespace ftrun {

/// Returns how many neighboring state ranks hold one set of secondary shards together
/// (StateOptions::secondary_shards).
int secondary_shards(const Config& config);

}  // namespace ftrun
