#pragma once

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace ftrun {

/// Makes JSON of a number; values that are not finite, which JSON cannot express, become words.
inline nlohmann::ordered_json json_of_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

/// Calls leaf(dotted name, text) for every leaf of `json`, whose name is `name`. Lists are leaves,
/// so that one more entry shifts no names.
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
