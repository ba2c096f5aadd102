#pragma once

#include <string>

#include "config/config_node.h"

namespace ftrun {

/// Reads one YAML document into nodes with positions. Merge keys (<<) are merged (a key written
/// next to them takes precedence). Problems (syntax, duplicate keys, several documents, cycles of
/// anchors) go to `problems`.
ConfigNode read_yaml(const std::string& file, const std::string& text, Problems& problems);

/// Reads the value of an override: a scalar or a list or map in YAML's flow style.
ConfigNode read_yaml_value(const std::string& source, const std::string& text, Problems& problems);

}  // namespace ftrun
