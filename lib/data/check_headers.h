#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/token_file.h"

namespace ftrun {

/// Returns an error (kBadInput) for each file of a data set that cannot be opened. This is fast: it
/// reads names, sizes, headers and the facts recorded in the sidecar of a file, and only the first
/// line of a large JSONL file. Refuses recorded ids outside `vocab_rows`, if these are known.
std::vector<Error> check_headers(const std::vector<std::string>& paths, TokenFileOptions options,
                                 std::optional<int64_t> vocab_rows);

}  // namespace ftrun
