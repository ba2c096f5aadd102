#pragma once

#include <string>

namespace ftrun {

/// docs/config.md: every key with type, default, unit and meaning.
std::string config_markdown();

/// A JSON Schema (draft-07) of the config, for editors: `ftrun schema`.
std::string config_json_schema();

/// One line a key: path, type, range, default, action. What the test of the surface freezes.
std::string config_surface();

}  // namespace ftrun
