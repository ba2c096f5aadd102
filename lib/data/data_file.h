#pragma once

#include <optional>
#include <string>

#include "base/data_format.h"

namespace ftrun {

/// Says whether a regular file of this name exists, also behind a link.
bool is_data_file(const std::string& path);

/// Finds the file that a name in data.train or data.validation stands for: itself, or the .bin or
/// .jsonl of a prefix (which may hold dots); nothing if there is no such file. Files beside the
/// data (.json, .mask, .idx) are named after this file, never after the prefix.
std::optional<std::string> find_data_file(const std::string& name);

/// Says whether a file that find_data_file() found is read as JSON Lines: by data.format if it is
/// set, else by the file's name.
bool is_jsonl(const std::string& file, DataFormat format);

}  // namespace ftrun
