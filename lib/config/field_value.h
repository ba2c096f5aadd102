#pragma once

#include <optional>
#include <string>

#include "config/node.h"
#include "config/schema.h"

namespace ftrun {

/// "a whole number from 0 to 3", "one of none, cpu, nvme": what a key's value must be.
std::string expected_text(const Field& field);

/// The text in small letters, in which choices of any case and synonyms are compared.
std::string lower(std::string text);

/// A node as the key's type. Whole floats become integers, numbers in quotes numbers, and so on,
/// each with a notice; what cannot be read so is an error and gives nothing. `key` is the path as
/// it was written.
std::optional<FieldValue> read_field_value(const Field& field, const Node& node,
                                           const std::string& key, Problems& problems);

}  // namespace ftrun
