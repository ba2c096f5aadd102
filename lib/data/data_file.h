#pragma once

#include <optional>
#include <string>

#include "base/data_format.h"

namespace ftrun {

/// Says whether there is a regular file of this name, also behind a link.
bool is_data_file(const std::string& path);

/// The file that a name in data.train or data.validation stands for: itself, or the .bin or .jsonl
/// of a prefix (which may hold dots); nothing where there is no such file. Files beside the data
/// (.json, .mask, .idx) are named by this file, never by the prefix.
std::optional<std::string> find_data_file(const std::string& name);

/// Says whether a file that find_data_file() found is read as JSON Lines: data.format says so, else
/// its name.
bool is_jsonl(const std::string& file, DataFormat format);

}  // namespace ftrun
