#pragma once

#include <string>

#include "config/desugar.h"
#include "config/written_config.h"

namespace ftrun {

/// Reads the merged tree of all sources by the schema. Every problem is reported with its position;
/// a key that could not be read has no value.
WrittenConfig read_config(const DesugaredTree& tree, Problems& problems);

}  // namespace ftrun
