#pragma once

#include "config/config.h"

namespace ftrun {

/// Says whether the data that a config trains on is present, by the headers of its files.
bool has_data(const Config& config);

}  // namespace ftrun
