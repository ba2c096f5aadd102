#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/config.h"
#include "config/problem.h"

namespace ftrun {

/// Checks the data files as training does when it opens them, except for checks that read all of
/// the data. Refuses recorded ids outside `vocab_rows`, if these are known.
std::vector<Problem> check_data_files(const Config& config, std::optional<int64_t> vocab_rows);

/// Returns whether the training data of a config exists and the headers of its files are readable.
bool has_readable_data(const Config& config);

}  // namespace ftrun
