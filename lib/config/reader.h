#pragma once

#include <string>

#include "config/config.h"
#include "config/desugar.h"

namespace ftrun {

/// Reads the tree of all sources into a Config by the schema. Every problem is reported with its
/// position; a key that could not be read keeps its default.
Config read_config(const SchemaTree& tree, Problems& problems);

}  // namespace ftrun
