#pragma once

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace ftrun {

/// Converts a number to JSON. JSON has no NaN and no infinity, so these become strings.
inline nlohmann::ordered_json json_of_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

/// Calls leaf(dotted name, text) for every leaf of `json`; the names begin with `name`. A list is
/// one leaf, so that inserting an entry does not rename the entries after it.
inline void flatten(const nlohmann::ordered_json& json, const std::string& name,
                    const std::function<void(const std::string&, const std::string&)>& leaf) {
  using Json = nlohmann::ordered_json;
  if (!json.is_object() || json.empty())
    return leaf(name, json.is_string() ? json.get<std::string>()
                                       : json.dump(-1, ' ', false, Json::error_handler_t::replace));
  for (const auto& [key, value] : json.items())
    flatten(value, name.empty() ? key : name + "." + key, leaf);
}

}  // namespace ftrun
