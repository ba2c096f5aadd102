#pragma once

#include <string>
#include <string_view>

#include "config/config_node.h"

namespace ftrun {

/// Reads JSON with comments (//, #, /* */) and trailing commas into nodes with positions. Problems
/// (syntax, duplicate keys, template placeholders such as CONFIG_X) go to `problems`; after a
/// syntax error the node holds the values read before it. Nesting deeper than 64 is refused.
ConfigNode read_json(const std::string& file, std::string_view text, Problems& problems);

}  // namespace ftrun
