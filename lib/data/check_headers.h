#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/token_file.h"

namespace ftrun {

/// Finds what keeps the files of a data set from being opened, an error a file (all kBadInput).
/// Cheap: names, sizes, headers and what is recorded beside a file are read, and of a large JSONL
/// file the first line. Recorded ids that are outside `vocab_rows`, where these are known, are
/// refused.
std::vector<Error> check_headers(const std::vector<std::string>& paths, TokenFileOptions options,
                                 std::optional<int64_t> vocab_rows);

}  // namespace ftrun
