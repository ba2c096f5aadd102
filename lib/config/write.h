#pragma once

#include <string>

#include "config/config.h"
#include "config/schema.h"

namespace ftrun {

/// A value as YAML 1.1 and 1.2 read it alike: "1.0e-05", true, "a text", [0.9, 0.999].
std::string yaml_text(const FieldValue& value);

/// A resolved config as YAML: every key ftrun uses with its value, and after it where the value
/// came from when that is not the default. Reads back as an equal Config.
std::string effective_yaml(const Config& config);

}  // namespace ftrun
