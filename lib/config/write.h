#pragma once

#include <map>
#include <string>

#include "config/config.h"
#include "config/schema.h"

namespace ftrun {

/// A value as YAML 1.1 and 1.2 read it alike: "1.0e-05", true, "a text", [0.9, 0.999].
std::string yaml_text(const FieldValue& value);

/// A resolved config as YAML: every key ftrun uses with its value, and after it where the value
/// came from when that is not the default. Reads back as an equal Config.
std::string effective_yaml(const Config& config);

/// The keys alone that a config gives itself, each with its comment of `comments`, by path, where
/// it has one. Reads back as an equal config.
std::string given_yaml(const Config& config, const std::map<std::string, std::string>& comments);

}  // namespace ftrun
