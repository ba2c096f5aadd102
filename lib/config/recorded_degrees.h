#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// Lists the degrees that the record of a run contains, by axis name: data and tensor always, other
/// degrees if they are above 1.
std::vector<std::pair<std::string, int64_t>> recorded_degrees(const ParallelConfig& mesh);

}  // namespace ftrun
