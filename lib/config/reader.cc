#include "config/reader.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "config/field_value.h"
#include "config/schema.h"
#include "config/suggest.h"
#include "optimizers/optimizers.h"

namespace ftrun {
namespace {

/// Returns whether a name is a class of torch.optim or torch.optim.lr_scheduler, which DeepSpeed
/// would instantiate by its name.
bool is_torch_class(const std::string& path, const std::string& name) {
  static const std::vector<std::string> kSchedulers{"ChainedScheduler",
                                                    "ConstantLR",
                                                    "CosineAnnealingLR",
                                                    "CosineAnnealingWarmRestarts",
                                                    "CyclicLR",
                                                    "ExponentialLR",
                                                    "LambdaLR",
                                                    "LinearLR",
                                                    "MultiStepLR",
                                                    "MultiplicativeLR",
                                                    "OneCycleLR",
                                                    "PolynomialLR",
                                                    "ReduceLROnPlateau",
                                                    "SequentialLR",
                                                    "StepLR"};
  const auto has = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return path == "optimizer.type" ? has(torch_optimizer_classes())
                                  : path == "scheduler.type" && has(kSchedulers);
}

bool applies_to_type(const Field& field, std::string_view type) {
  return field.types.empty() ||
         std::find(field.types.begin(), field.types.end(), type) != field.types.end();
}

/// Returns whether a free-form section is enabled: by its own `enabled`, else by that of any
/// section in it.
bool is_enabled(const ConfigNode& node) {
  const ConfigNode* enabled = node.find("enabled");
  if (enabled != nullptr) return enabled->boolean || enabled->text == "true";
  for (const ConfigEntry& entry : node.entries)
    if (is_enabled(entry.value)) return true;
  return false;
}

/// Returns a doc such as "Sparse gradients of embeddings." as the name of a feature within a
/// sentence: the text before the first punctuation mark, beginning in lower case unless its first
/// word is a name with more capitals, such as DeepSpeed's.
std::string feature_name(const std::string& doc, const std::string& name) {
  if (doc.empty()) return name;
  std::string feature = doc.substr(0, doc.find_first_of(".;:"));
  const auto is_capital = [](char c) { return c >= 'A' && c <= 'Z'; };
  const auto word_end = std::find(feature.begin(), feature.end(), ' ');
  if (is_capital(feature[0]) && std::none_of(feature.begin() + 1, word_end, is_capital))
    feature[0] = static_cast<char>(feature[0] - 'A' + 'a');
  return feature;
}

bool is_inactive(const Field& field, const FieldValue& value) {
  const auto* number = std::get_if<int64_t>(&value);
  return value == field.default_value || (number != nullptr && field.largest_inactive &&
                                          static_cast<double>(*number) <= *field.largest_inactive);
}

class TreeReader {
 public:
  explicit TreeReader(Problems& problems) : problems_(problems) {}

  WrittenConfig read(const ConfigNode& root) {
    if (root.is_map())
      read_section(root, "", "");
    else if (root.kind != ConfigNodeKind::kNull)
      problems_.error(root.at, cat("expected a config with keys, found ", value_text(root)));
    report_ignored();
    return std::move(config_);
  }

 private:
  /// Reads a section. `spelled_path` is its path as the file spells it. Keys are read before
  /// sections, so that a type is known when its params are read.
  void read_section(const ConfigNode& map, const std::string& path,
                    const std::string& spelled_path) {
    for (const ConfigEntry& entry : map.entries)
      if (const Field* field = schema_.find(path, entry.key); field != nullptr)
        read_field(*field, entry, join_key(spelled_path, entry.spelling()));
    for (const ConfigEntry& entry : map.entries) {
      if (schema_.find(path, entry.key) != nullptr) continue;
      const Section* inner = entry.key.find('.') == std::string::npos
                                 ? schema_.find_section(join_key(path, entry.key))
                                 : nullptr;
      if (inner != nullptr)
        read_inner_section(*inner, entry, join_key(spelled_path, entry.spelling()));
      else
        refuse_unknown(path, entry, join_key(spelled_path, entry.spelling()));
    }
  }

  void read_inner_section(const Section& section, const ConfigEntry& entry,
                          const std::string& spelled_path) {
    const ConfigNode& value = entry.value;
    if (value.kind == ConfigNodeKind::kNull &&
        (section.nullable || section.origin == KeyOrigin::kFtrun))
      return;
    if (!value.is_map()) {
      problems_.error(value.at,
                      cat(spelled_path, ": expected a section of keys, found ", value_text(value)),
                      section_form(section, entry));
      return;
    }
    config_.origins.keys[section.path] = {entry.at, false};
    if (section.free_form)
      read_free_form(section, entry, spelled_path);
    else
      read_section(value, section.path, spelled_path);
  }

  /// Suggests what a plain value in place of a section was meant to say: "write bf16: {enabled:
  /// true}".
  std::string section_form(const Section& section, const ConfigEntry& entry) const {
    const ConfigNode& value = entry.value;
    for (const Field& field : schema_.fields()) {
      if (field.section != section.path) continue;
      const bool says_whether = field.name == "enabled" && value.kind == ConfigNodeKind::kBool;
      const auto& choices = field.choices;
      const bool says_which =
          value.kind == ConfigNodeKind::kText &&
          std::find(choices.begin(), choices.end(), value.text) != choices.end();
      const bool says_where = field.name == "path" && value.kind == ConfigNodeKind::kText;
      if (says_whether || says_which || says_where)
        return cat("write ", entry.spelling(), ": {", field.name, ": ",
                   !says_whether   ? value.text
                   : value.boolean ? "true"
                                   : "false",
                   "}");
    }
    return "";
  }

  void read_free_form(const Section& section, const ConfigEntry& entry,
                      const std::string& spelled_path) {
    if (section.needs_enabled && entry.value.find("enabled") == nullptr)
      problems_.error(entry.at, cat(spelled_path, ": needs the key enabled"),
                      "add \"enabled\": true or false");
    const bool on =
        section.support == KeySupport::kRefuse ||
        (section.support == KeySupport::kRefuseUnlessDefault && is_enabled(entry.value));
    if (on)
      config_.origins.unsupported.push_back(
          {feature_name(section.doc, section.path), section.path, entry.at});
    else if (section.support == KeySupport::kNotice)
      record_ignored(section.path, entry.at);
  }

  std::string type_of(const std::string& section) const {
    if (section != "optimizer.params" && section != "scheduler.params") return "";
    return config_.get<std::string>(section.substr(0, section.find('.')) + ".type");
  }

  bool is_torch_class_section(const std::string& section) const {
    return type_of(section).starts_with("torch.optim");
  }

  void read_field(const Field& field, const ConfigEntry& entry, const std::string& spelled_path) {
    const ConfigNode& node = entry.value;
    if (is_torch_class_section(field.section)) return;
    if (!applies_to_type(field, type_of(field.section)))
      return refuse_parameter(field, entry, spelled_path);
    const bool null_allowed = field.forms.allows_null || field.origin == KeyOrigin::kFtrun;
    if (node.kind == ConfigNodeKind::kNull && null_allowed) return;
    if (node.kind == ConfigNodeKind::kText && node.text == "auto" && !takes_auto(field)) {
      config_.origins.keys[field.path()] = {node.at, true};
      return;
    }
    if (node.kind == ConfigNodeKind::kText && is_torch_class(field.path(), node.text))
      return record_torch_class(field, node);
    // Hugging Face's launcher writes infinity to mean "never".
    const bool never = field.name == "steps_per_print" && node.kind != ConfigNodeKind::kMap &&
                       (node.number > 9e18 || node.text == "inf");
    if (never) {
      config_.write(field, int64_t{0}, node.at);
      return;
    }
    const std::optional<FieldValue> value = read_field_value(field, node, spelled_path, problems_);
    if (!value) {
      config_.origins.keys[field.path()] = {node.at, true};
      return;
    }
    config_.write(field, *value, node.at);
    apply_support(field, entry, *value);
  }

  static bool takes_auto(const Field& field) {
    if (field.type == FieldType::kChoice)
      return std::find(field.choices.begin(), field.choices.end(), "auto") != field.choices.end();
    return field.type == FieldType::kAnyValue ||
           (field.type == FieldType::kText && field.origin == KeyOrigin::kFtrun);
  }

  void record_torch_class(const Field& field, const ConfigNode& node) {
    const std::string_view type = field.section == "optimizer" ? name_of(OptimizerType::kTorch)
                                                               : name_of(SchedulerType::kTorch);
    config_.write(field, std::string(type), node.at);
    config_.origins.unsupported.push_back(
        {"the class " + node.text + " of PyTorch", field.path(), node.at});
  }

  void refuse_parameter(const Field& field, const ConfigEntry& entry,
                        const std::string& spelled_path) {
    const std::string type = type_of(field.section);
    std::vector<std::string> names;
    for (const Field& other : schema_.fields())
      if (other.section == field.section && applies_to_type(other, type))
        names.push_back(other.name);
    problems_.error(entry.at, cat(spelled_path, ": ", type, " has no such parameter"),
                    cat("use one of its parameters: ", join(names, ", ")));
  }

  void apply_support(const Field& field, const ConfigEntry& entry, const FieldValue& value) {
    if (field.support == KeySupport::kApply) return;
    const bool changed = field.type == FieldType::kAnyValue || !is_inactive(field, value);
    if (field.support == KeySupport::kNotice) {
      if (changed) record_ignored(field.path(), entry.at, field.no_effect_reason);
    } else if (changed || field.support == KeySupport::kRefuse) {
      config_.origins.unsupported.push_back(
          {feature_name(field.doc, field.name), field.path(), entry.at});
    }
  }

  void refuse_unknown(const std::string& path, const ConfigEntry& entry,
                      const std::string& spelled_path) {
    if (is_torch_class_section(path)) return;
    if (const LegacyKey* key = schema_.find_legacy(path, entry.key); key != nullptr) {
      problems_.notice(entry.at, cat(spelled_path, ": ignored: ", key->reason), "", spelled_path);
      return;
    }
    std::vector<std::string> names;
    for (const std::string& name : schema_.names_in(path)) {
      const Field* field = schema_.find(path, name);
      if (field == nullptr || applies_to_type(*field, type_of(path))) names.push_back(name);
    }
    const std::string meant = key_suggestion(path, entry.key, names);
    problems_.error(entry.at, cat(spelled_path, ": unknown key", meant),
                    meant.empty() ? known_keys_text(path, names) : "");
  }

  /// Says which keys a section has, or where they are listed if they are many.
  static std::string known_keys_text(const std::string& section,
                                     const std::vector<std::string>& names) {
    constexpr size_t kMaxListed = 24;
    if (names.empty()) return "";
    if (section.empty() || names.size() > kMaxListed)
      return "list all keys with: ftrun schema --markdown";
    return cat("use one of the keys of ", section, ": ", join(names, ", "));
  }

  void record_ignored(const std::string& path, const Position& at, const std::string& reason = "") {
    ignored_.push_back({path, at, reason});
  }

  /// Reports one notice for each section, which names the keys that were checked and have no
  /// effect.
  void report_ignored() {
    std::map<std::string, std::vector<std::string>> names;
    std::vector<std::pair<std::string, Position>> firsts;
    for (const Ignored& key : ignored_) {
      const size_t dot = key.path.rfind('.');
      const std::string section = dot == std::string::npos ? "" : key.path.substr(0, dot);
      if (names[section].empty()) firsts.emplace_back(section, key.at);
      names[section].push_back(cat(dot == std::string::npos ? key.path : key.path.substr(dot + 1),
                                   key.reason.empty() ? "" : cat(" (", key.reason, ")")));
    }
    for (const auto& [section, at] : firsts)
      problems_.notice(at,
                       cat(section.empty() ? "" : section + ": ",
                           "accepted without effect in ftrun: ", join(names[section], ", ")),
                       "", section);
  }

  const Schema& schema_ = Schema::get();
  Problems& problems_;
  WrittenConfig config_;
  /// Ignored is a key that is accepted without effect, and the reason.
  struct Ignored {
    std::string path;
    Position at;
    std::string reason;
  };
  std::vector<Ignored> ignored_;
};

}  // namespace

WrittenConfig read_config(const DesugaredTree& tree, Problems& problems) {
  return TreeReader(problems).read(tree.root());
}

}  // namespace ftrun
