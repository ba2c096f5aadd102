#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "data/token_file.h"

namespace ftrun {

/// What keeps the files of a data set from being opened, an error a file (all kBadInput). Cheap:
/// names, sizes and headers are read, and of a large JSONL file the first line.
std::vector<Error> check_headers(const std::vector<std::string>& paths, TokenFileOptions options);

}  // namespace ftrun
