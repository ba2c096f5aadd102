#pragma once

#include "config/config.h"

namespace ftrun {

/// Returns whether the training data of a config exists. Reads only the headers of its files.
bool has_data(const Config& config);

}  // namespace ftrun
