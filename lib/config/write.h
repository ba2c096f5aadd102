#pragma once

#include <map>
#include <string>

#include "config/config.h"
#include "config/schema.h"
#include "config/written_config.h"

namespace ftrun {

/// Formats a value so that YAML 1.1 and 1.2 read the same value: "1.0e-05", true, "a text", [0.9,
/// 0.999].
std::string yaml_text(const FieldValue& value);

/// Formats a resolved config as YAML: every key that ftrun uses with its value, followed by the
/// source of the value if it is not the default. Reading the text gives an equal Config.
std::string effective_yaml(const Config& config);

/// Formats the written keys as YAML, each with its comment from `comments` (by path), if there is
/// one. Reading the text gives the same values.
std::string written_yaml(const WrittenConfig& config,
                         const std::map<std::string, std::string>& comments);

}  // namespace ftrun
