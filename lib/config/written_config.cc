#include "config/written_config.h"

#include <utility>

namespace ftrun {

void WrittenConfig::write(const Field& field, FieldValue value, const Position& at) {
  values_[&field] = std::move(value);
  origins.keys[field.path()] = {at, false};
}

void WrittenConfig::erase(const std::string& path) {
  values_.erase(&Schema::get().at(path));
  origins.keys.erase(path);
}

const FieldValue& WrittenConfig::written_or_default(const std::string& path) const {
  const Field& field = Schema::get().at(path);
  const auto found = values_.find(&field);
  return found == values_.end() ? field.default_value : found->second;
}

Config with_defaults(const WrittenConfig& written) {
  Config config;
  config.origins = written.origins;
  config.model.commit = written.model_commit;
  for (const Field& field : Schema::get().fields())
    if (field.decides_auto) config.auto_keys.insert(field.path());
  for (const auto& [field, value] : written.values()) {
    if (field->is_auto(value)) continue;
    if (field->decides_auto) config.auto_keys.erase(field->path());
    if (field->store) field->store(config, value);
  }
  return config;
}

}  // namespace ftrun
