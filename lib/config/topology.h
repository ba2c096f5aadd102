#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// Lists the degree of each axis that a record of a run has, by the axis's name: data and tensor
/// always, the others where they are more than 1.
std::vector<std::pair<std::string, int64_t>> topology_of(const ParallelConfig& mesh);

}  // namespace ftrun
