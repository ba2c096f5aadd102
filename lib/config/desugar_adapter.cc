#include "config/desugar_adapter.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/module_names.h"

namespace ftrun {
namespace {

/// Fields of LoraConfig that change what the adapter computes or which weights train.
constexpr std::array<std::string_view, 17> kUnsupportedFields{
    "lora_bias",          "trainable_token_indices",
    "target_parameters",  "layer_replication",
    "loftq_config",       "eva_config",
    "corda_config",       "lora_ga_config",
    "megatron_config",    "use_qalora",
    "velora_config",      "monteclora_config",
    "kasa_config",        "arrow_config",
    "use_bdlora",         "alora_invocation_tokens",
    "ensure_weight_tying"};

/// Keys that PEFT writes into every file and that do not change what the adapter computes here.
constexpr std::array<std::string_view, 10> kPeftOnlyKeys{
    "task_type",      "peft_version",   "base_model_name_or_path", "revision",
    "auto_mapping",   "inference_mode", "megatron_core",           "qalora_group_size",
    "layers_pattern", "runtime_config"};

/// Keys of ftrun that no PEFT file has.
constexpr std::array<std::string_view, 6> kFtrunOnlyKeys{"type",
                                                         "path",
                                                         "target_pattern",
                                                         "exclude_pattern",
                                                         "rank_pattern_ranks",
                                                         "alpha_pattern_alphas"};

bool is_on(const ConfigNode& value) {
  switch (value.kind) {
    case ConfigNodeKind::kNull:
      return false;
    case ConfigNodeKind::kBool:
      return value.boolean;
    case ConfigNodeKind::kList:
      return !value.items.empty();
    case ConfigNodeKind::kMap:
      return !value.entries.empty();
    default:
      return true;
  }
}

void expand_peft_file(ConfigNode& adapter, Problems& problems) {
  for (const std::string_view key : kPeftOnlyKeys) adapter.erase(key);
  for (const std::string_view key : kFtrunOnlyKeys)
    if (const ConfigEntry* entry = adapter.find_entry(key); entry != nullptr) {
      problems.error(entry->at, cat("adapter.", key, ": not a key of PEFT's adapter_config.json"),
                     "remove it from the file");
      adapter.erase(key);
    }
  if (adapter.find("peft_type") == nullptr)
    adapter.entries.push_back({"type", adapter.at, ConfigNode::of_text(adapter.at, "lora"), ""});
}

void refuse_unsupported_fields(ConfigNode& adapter, bool is_peft_file, Problems& problems) {
  // PEFT sets this field by the class of each module, regardless of the file.
  adapter.erase("fan_in_fan_out");
  for (const std::string_view key : kUnsupportedFields) {
    const ConfigEntry* entry = adapter.find_entry(key);
    if (entry == nullptr) continue;
    if (is_on(entry->value))
      problems.error(entry->at,
                     cat("adapter.", key, ": ", value_text(entry->value),
                         ": not supported; ignoring it would train a different adapter"),
                     is_peft_file
                         ? "continue with an adapter that was made without it, or have PEFT merge "
                           "this one (merge_and_unload) and train on that model"
                         : "remove it");
    adapter.erase(key);
  }
}

/// Refuses initial values that PEFT computes from the base's weights. PEFT then subtracts B A from
/// the base, so the adapter belongs to the changed base.
void refuse_unsupported_init(ConfigNode& adapter, Problems& problems) {
  const ConfigEntry* entry = adapter.find_entry("init_lora_weights");
  if (entry == nullptr || entry->value.kind != ConfigNodeKind::kText) return;
  const std::string& text = entry->value.text;
  if (text.starts_with("pissa") || text == "olora" || text == "loftq" || text == "corda" ||
      text == "lora_ga") {
    problems.error(entry->at,
                   cat("adapter.init_lora_weights: ", text,
                       ": not supported: it changes the base's weights, and the adapter would fit "
                       "no other base than that"),
                   "convert the adapter with PEFT (save_pretrained with "
                   "path_initial_model_for_weight_conversion); for a new adapter set "
                   "init_lora_weights to true, gaussian or orthogonal");
    adapter.erase("init_lora_weights");
  }
}

/// Moves a single text that is written in place of a list of modules: to the list if it is
/// all-linear, else to the pattern.
void split_modules(ConfigNode& adapter, const std::string& list, const std::string& pattern) {
  ConfigEntry* entry = adapter.find_entry(list);
  if (entry == nullptr || entry->value.kind != ConfigNodeKind::kText) return;
  if (entry->value.text != kAllLinear) {
    entry->spelled_key = entry->key;
    entry->key = pattern;
    return;
  }
  ConfigNode items;
  items.kind = ConfigNodeKind::kList;
  items.at = entry->value.at;
  items.items.push_back(entry->value);
  entry->value = std::move(items);
}

/// Splits `{expression: number}` into a list of expressions and a list of numbers.
void split_pattern(ConfigNode& adapter, const std::string& key, const std::string& numbers,
                   Problems& problems) {
  ConfigEntry* entry = adapter.find_entry(key);
  if (entry == nullptr || !entry->value.is_map()) return;
  if (const ConfigEntry* other = adapter.find_entry(numbers); other != nullptr) {
    problems.error(other->at,
                   cat("adapter.", numbers, ": set together with adapter.", key, " (line ",
                       entry->at.line, "), which has its numbers"),
                   "keep one of the two");
    return;
  }
  ConfigNode names, values;
  names.kind = values.kind = ConfigNodeKind::kList;
  names.at = values.at = entry->value.at;
  for (const ConfigEntry& one : entry->value.entries) {
    names.items.push_back(ConfigNode::of_text(one.at, one.key));
    values.items.push_back(one.value);
  }
  const Position at = entry->at;
  entry->value = std::move(names);
  adapter.entries.push_back({numbers, at, std::move(values), key});
}

/// Returns whether a list names only matrices that ftrun never quantizes.
bool names_unquantized(const ConfigNode& modules) {
  const auto is_unquantized = [](const ConfigNode& module) {
    return module.kind == ConfigNodeKind::kText &&
           (module.text == "lm_head" || module.text == "embed_tokens" ||
            module.text == "model.embed_tokens");
  };
  return modules.kind == ConfigNodeKind::kList &&
         std::all_of(modules.items.begin(), modules.items.end(), is_unquantized);
}

/// Refuses settings of bitsandbytes that contradict the type or that ftrun does not implement.
void refuse_quantization_keys(const ConfigNode& quantization, Problems& problems) {
  const auto entry = [&](std::string_view key) {
    const ConfigEntry* found = quantization.find_entry(key);
    return found == nullptr || !is_on(found->value) ? nullptr : found;
  };
  const ConfigEntry* type = entry("type");
  if (type == nullptr) type = entry("bnb_4bit_quant_type");
  const std::string type_name =
      type != nullptr && type->value.kind == ConfigNodeKind::kText ? type->value.text : "";
  for (const auto& [key, other] : {std::pair{"load_in_4bit", "int8"}, {"load_in_8bit", "nf4"}})
    if (const ConfigEntry* flag = entry(key); flag != nullptr && type_name == other)
      problems.error(flag->at, cat("quantization.", key, ": the type is ", type_name),
                     cat("remove it, or write type: ", type_name == "nf4" ? "int8" : "nf4"));
  if (const ConfigEntry* skipped = entry("llm_int8_skip_modules");
      skipped != nullptr && !names_unquantized(skipped->value))
    problems.error(skipped->at,
                   "quantization.llm_int8_skip_modules: supported only for lm_head and "
                   "embed_tokens: all matrices of the blocks are quantized, "
                   "and the head and the embedding are not",
                   "remove it");
}

}  // namespace

void desugar_quantization(ConfigNode& root, Problems& problems) {
  ConfigNode* quantization = root.find("quantization");
  if (quantization == nullptr || !quantization->is_map()) return;
  refuse_quantization_keys(*quantization, problems);
  quantization->erase("llm_int8_skip_modules");
}

void desugar_adapter(ConfigNode& root, bool is_peft_file, Problems& problems) {
  ConfigNode* adapter = root.find("adapter");
  if (adapter == nullptr || !adapter->is_map()) return;
  if (is_peft_file) expand_peft_file(*adapter, problems);
  refuse_unsupported_fields(*adapter, is_peft_file, problems);
  refuse_unsupported_init(*adapter, problems);
  split_modules(*adapter, "target_modules", "target_pattern");
  split_modules(*adapter, "exclude_modules", "exclude_pattern");
  split_pattern(*adapter, "rank_pattern", "rank_pattern_ranks", problems);
  split_pattern(*adapter, "alpha_pattern", "alpha_pattern_alphas", problems);
  if (ConfigEntry* layers = adapter->find_entry("layers_to_transform");
      layers != nullptr && layers->value.kind == ConfigNodeKind::kInt) {
    ConfigNode list;
    list.kind = ConfigNodeKind::kList;
    list.at = layers->value.at;
    list.items.push_back(layers->value);
    layers->value = std::move(list);
  }
  if (ConfigEntry* begin = adapter->find_entry("init_lora_weights");
      begin != nullptr && begin->value.kind == ConfigNodeKind::kBool)
    begin->value = ConfigNode::of_text(begin->value.at, begin->value.boolean ? "true" : "false");
}

}  // namespace ftrun
