#include "config/effective_json.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "config/schema.h"

namespace ftrun {

std::string effective_json(const Config& config) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  for (const Field& field : Schema::get().fields()) {
    if (!field.load || is_switched_off(config, field)) continue;
    nlohmann::ordered_json* section = &root;
    if (!field.section.empty())
      for (const std::string& part : split(field.section, '.')) section = &(*section)[part];
    std::visit([&](const auto& value) { (*section)[field.name] = value; },
               effective_value(config, field));
  }
  return root.dump(2);
}

}  // namespace ftrun
