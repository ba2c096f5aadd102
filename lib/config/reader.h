#pragma once

#include <string>

#include "config/config.h"
#include "config/node.h"

namespace ftrun {

/// Reads a merged tree into a Config by the schema. Every fault is reported with its place; a key
/// that could not be read keeps its default.
Config read_config(const Node& root, Problems& problems);

}  // namespace ftrun
