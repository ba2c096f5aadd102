#include "inputs/recorded_run.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/import.h"
#include "checkpoint/json_strict.h"

namespace ftrun {
namespace {

/// Returns the saved config, or this run's config `current` if the checkpoint has none, with the
/// seed that the checkpoint records separately.
std::string saved_config(const CheckpointMeta& saved, const std::string& current) {
  const auto kept = saved.extra.find(kConfigRecord);
  const std::string& text = kept == saved.extra.end() ? current : kept->second;
  auto config = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object() || !config.contains("train") || !config["train"].is_object()) return text;
  config["train"]["seed"] = saved.seed;
  return config.dump(2);
}

ImportRecord import_record(const CheckpointMeta& saved) {
  return parse_import_record(saved.extra.at(kImportRecord),
                             "the checkpoint's record of its import");
}

/// Returns this run's config with the known settings of the other program in place of its own.
/// Settings that this run's config does not have are skipped.
std::string imported_config(const CheckpointMeta& saved, const std::string& current) {
  auto config = nlohmann::ordered_json::parse(current, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return current;
  for (const auto& [name, value] : import_record(saved).known_settings) {
    nlohmann::ordered_json* setting = &config;
    for (const std::string& key : split(name, '.'))
      setting = setting != nullptr && setting->is_object() && setting->contains(key)
                    ? &(*setting)[key]
                    : nullptr;
    const auto imported = nlohmann::ordered_json::parse(value, nullptr, /*allow_exceptions=*/false);
    if (setting != nullptr && setting->type() == imported.type()) *setting = imported;
  }
  return config.dump(2);
}

}  // namespace

bool is_imported(const CheckpointMeta& saved) {
  return saved.extra.contains(kImportRecord);
}

std::string import_notice(const std::string& folder, const CheckpointMeta& saved) {
  const ImportRecord record = import_record(saved);
  return cat(folder, ": was imported from ", printable_text(record.source),
             record.unknown_settings.empty()
                 ? ""
                 : cat("; not known: ", printable_text(join(record.unknown_settings, ", "))),
             "; the data continues where step ", saved.step, " of this config ends");
}

RunManifest recorded_run(const CheckpointMeta& saved, const RunManifest& current) {
  RunManifest recorded = current;
  if (is_imported(saved)) {
    recorded.config = imported_config(saved, current.config);
    return recorded;
  }
  recorded.seed = saved.seed;
  recorded.config = saved_config(saved, current.config);
  for (auto& [axis, ranks] : recorded.topology)
    if (const auto known = saved.topology.find(axis); known != saved.topology.end())
      ranks = known->second;
  if (!saved.model_fingerprint.empty()) recorded.model.fingerprint = saved.model_fingerprint;
  if (!saved.data_fingerprint.empty()) recorded.data["train"].fingerprint = saved.data_fingerprint;
  return recorded;
}

}  // namespace ftrun
