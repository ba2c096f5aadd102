#pragma once

#include <string>

namespace ftrun {

/// Returns the text of docs/config.md: every key with type, default, unit and meaning.
std::string config_markdown();

/// Returns a JSON Schema (draft-07) of the config, for editors: `ftrun schema`.
std::string config_json_schema();

/// Lists all keys, one per line: path, type, range, default, support. A test compares it with a
/// recorded list.
std::string config_surface();

}  // namespace ftrun
