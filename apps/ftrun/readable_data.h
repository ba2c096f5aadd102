#pragma once

#include "config/config.h"

namespace ftrun {

/// Returns whether the training data of a config exists and the headers of its files are readable.
bool has_readable_data(const Config& config);

}  // namespace ftrun
