#pragma once

#include <optional>
#include <string>

#include "base/data_format.h"

namespace ftrun {

/// Returns whether a regular file of this name, or a link to one, exists.
bool is_data_file(const std::string& path);

/// Finds the file that a name in data.train or data.validation means: the file itself, or the .bin
/// or .jsonl file of a prefix (which may contain dots); nothing if there is no such file. Files
/// next to the data (.json, .mask, .idx) are named after this file, never after the prefix.
std::optional<std::string> find_data_file(const std::string& name);

/// Returns whether a file that find_data_file() found is read as JSON Lines: data.format decides if
/// it is set, else the file's name.
bool is_jsonl(const std::string& file, DataFormat format);

}  // namespace ftrun
