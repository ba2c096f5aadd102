#pragma once

#include <optional>
#include <string>

#include "config/config_node.h"
#include "config/schema.h"

namespace ftrun {

/// Describes the values that a key may have: "a whole number from 0 to 3", "one of none, cpu,
/// nvme".
std::string expected_values_text(const Field& field);

/// Converts a text to lower case, so that choices and synonyms can be compared without regard to
/// case.
std::string to_lower_case(std::string text);

/// Reads a node as the key's type. Whole floats are converted to integers, numbers in quotes to
/// numbers, and so on, each with a notice. A value that cannot be converted is an error, and
/// nothing is returned. `key` is the path as it was written.
std::optional<FieldValue> read_field_value(const Field& field, const ConfigNode& node,
                                           const std::string& key, Problems& problems);

}  // namespace ftrun
