#include "config/schema.h"

#include <utility>

#include "base/error.h"
#include "config/config_node.h"
#include "config/schema_tables.h"

namespace ftrun {

bool Field::is_auto(const FieldValue& value) const {
  return decides_auto && value == FieldValue(std::string("auto"));
}

Field& Field::or_auto() {
  decides_auto = true;
  choices.insert(choices.begin(), "auto");
  default_value = std::string("auto");
  return *this;
}

const Schema& Schema::get() {
  static const Schema schema = [] {
    Schema s;
    declare_own_sections(s);
    declare_deepspeed_top(s);
    declare_optimizer(s);
    declare_scheduler(s);
    declare_precision(s);
    declare_zero(s);
    declare_deepspeed_sections(s);
    declare_legacy(s);
    index_schema(s);
    return s;
  }();
  return schema;
}

Field SectionKeyRows::make_field(const char* name, FieldType type, const char* doc) const {
  Field field;
  field.section = path_;
  field.name = name;
  field.type = type;
  field.doc = doc;
  field.origin = origin_;
  return field;
}

Field& SectionKeyRows::add_stored_key(const char* name, FieldType type,
                                      std::span<const std::string_view> choices, const char* doc,
                                      std::function<void(Config&, const FieldValue&)> store,
                                      std::function<FieldValue(const Config&)> load) {
  static const Config defaults;
  Field field = make_field(name, type, doc);
  for (const std::string_view choice : choices)
    if (!choice.starts_with("torch.")) field.choices.emplace_back(choice);
  field.store = std::move(store);
  field.load = std::move(load);
  field.default_value = field.load(defaults);
  return schema_.add(std::move(field));
}

Field& SectionKeyRows::add_checked_key(const char* name, FieldType type, FieldValue default_value,
                                       const char* doc) {
  Field field = make_field(name, type, doc);
  field.default_value = std::move(default_value);
  return schema_.add(std::move(field)).notice();
}

Field& SectionKeyRows::checked_choice(const char* name, std::vector<std::string> choices,
                                      const char* doc) {
  Field& field = add_checked_key(name, FieldType::kChoice, choices.front(), doc);
  field.choices = std::move(choices);
  return field;
}

Field& SectionKeyRows::any_value(const char* name, const char* doc) {
  return add_checked_key(name, FieldType::kAnyValue, std::string(), doc);
}

void index_schema(Schema& schema) {
  const auto put = [&](const Field& field, const std::string& name, size_t i) {
    const bool fresh = schema.by_path_.emplace(join_key(field.section, name), i).second;
    require(fresh, "each row of the schema has a name of its own");
  };
  for (size_t i = 0; i < schema.fields_.size(); ++i) {
    const Field& field = schema.fields_[i];
    put(field, field.name, i);
    for (const std::string& alias : field.aliases) put(field, alias, i);
  }
}

const Field* Schema::find(const std::string& section, const std::string& name) const {
  // A dot in a written key must not select a key of another section.
  if (name.find('.') != std::string::npos) return nullptr;
  const auto it = by_path_.find(join_key(section, name));
  return it == by_path_.end() ? nullptr : &fields_[it->second];
}

const Field& Schema::at(const std::string& path) const {
  const auto it = by_path_.find(path);
  require(it != by_path_.end(), "a path that the program names is one of the schema");
  return fields_[it->second];
}

const Section* Schema::find_section(const std::string& path) const {
  for (const Section& section : sections_)
    if (section.path == path) return &section;
  return nullptr;
}

const LegacyKey* Schema::find_legacy(const std::string& section, const std::string& name) const {
  for (const LegacyKey& key : legacy_)
    if (key.section == section && key.name == name) return &key;
  return nullptr;
}

std::vector<std::string> Schema::names_in(const std::string& section) const {
  std::vector<std::string> names;
  for (const Field& field : fields_) {
    if (field.section != section) continue;
    names.push_back(field.name);
    names.insert(names.end(), field.aliases.begin(), field.aliases.end());
  }
  const std::string prefix = section.empty() ? "" : section + ".";
  for (const Section& s : sections_) {
    if (s.path.rfind(prefix, 0) != 0) continue;
    const std::string rest = s.path.substr(prefix.size());
    if (!rest.empty() && rest.find('.') == std::string::npos) names.push_back(rest);
  }
  return names;
}

std::vector<std::string> Schema::paths_named(const std::string& name) const {
  std::vector<std::string> paths;
  for (const Field& field : fields_)
    if (field.name == name) paths.push_back(field.path());
  for (const Section& section : sections_)
    if (section.path == name || section.path.ends_with("." + name)) paths.push_back(section.path);
  return paths;
}

Field& Schema::add(Field field) {
  return fields_.emplace_back(std::move(field));
}

void Schema::add_section(Section section) {
  sections_.push_back(std::move(section));
}

void Schema::add_legacy(std::string section, std::string name, std::string reason) {
  legacy_.push_back({std::move(section), std::move(name), std::move(reason)});
}

FieldValue effective_value(const Config& config, const Field& field) {
  if (field.decides_auto && config.auto_keys.contains(field.path())) return std::string("auto");
  return field.load(config);
}

bool is_switched_off(const Config& config, const Field& field) {
  if (field.section == "quantization") return config.quantization.type == QuantizationType::kNone;
  return field.section == "adapter" && config.adapter.type == AdapterType::kNone;
}

}  // namespace ftrun
