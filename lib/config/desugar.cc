#include "config/desugar.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "config/contradicted_keys.h"
#include "config/desugar_adapter.h"
#include "config/field_value.h"
#include "config/schema.h"
#include "optimizers/optimizers.h"

namespace ftrun {
namespace {

/// Renames the key `from` to `to`, unless both are written.
void rename_key(ConfigNode& map, const std::string& section, const std::string& from,
                const std::string& to, Problems& problems) {
  ConfigEntry* entry = map.find_entry(from);
  if (entry == nullptr) return;
  if (const ConfigEntry* other = map.find_entry(to); other != nullptr) {
    problems.error(entry->at,
                   cat(join_key(section, from), ": set together with \"", to, "\" (line ",
                       other->at.line, "), which is the same key"),
                   "keep one of the two");
    map.erase(from);
    return;
  }
  entry->spelled_key = entry->key;
  entry->key = to;
}

void rename_aliases(ConfigNode& map, const std::string& section, Problems& problems) {
  for (const Field& field : Schema::get().fields())
    if (field.section == section)
      for (const std::string& alias : field.aliases)
        rename_key(map, section, alias, field.name, problems);
  for (ConfigEntry& entry : map.entries)
    if (entry.value.is_map()) rename_aliases(entry.value, join_key(section, entry.key), problems);
}

/// Expands `zero_optimization: true` to stage 1.
void expand_zero_flag(ConfigNode& root, Problems& problems) {
  ConfigNode* zero = root.find("zero_optimization");
  if (zero == nullptr || zero->kind != ConfigNodeKind::kBool) return;
  const Position at = zero->at;
  const bool on = zero->boolean;
  problems.notice(at,
                  cat("zero_optimization: ", on ? "true is stage 1" : "false is stage 0",
                      "; the section form is zero_optimization: {stage: N}"),
                  "", "zero_optimization");
  *zero = ConfigNode::of_map(at);
  zero->entries.push_back({"stage", at, ConfigNode::of_int(at, on ? 1 : 0), ""});
  const ConfigNode* bucket = root.find("allgather_size");
  if (on && bucket != nullptr)
    zero->entries.push_back({"allgather_bucket_size", bucket->at, *bucket, "allgather_size"});
}

/// Expands `recompute: full` to `recompute: {policy: full}`; true and false become the nearest
/// words.
void expand_plain_values(ConfigNode& root, Problems& problems) {
  for (const Section& section : Schema::get().sections()) {
    ConfigNode* value = section.shorthand_key.empty() ? nullptr : root.find(section.path);
    if (value == nullptr || value->kind == ConfigNodeKind::kNull ||
        value->kind == ConfigNodeKind::kList || value->is_map())
      continue;
    ConfigNode plain = *value;
    if (section.path == "recompute" && plain.kind == ConfigNodeKind::kBool) {
      plain = ConfigNode::of_text(plain.at, plain.boolean ? "full" : "none");
      problems.notice(plain.at, cat("recompute: ", value->boolean ? "true" : "false",
                                    " is read as ", plain.text));
    }
    *value = ConfigNode::of_map(plain.at);
    value->entries.push_back({section.shorthand_key, plain.at, std::move(plain), ""});
  }
}

/// Expands `cpu_offload: true` to `offload_optimizer: {device: cpu}`, and likewise for parameters.
void expand_cpu_offload(ConfigNode& zero, const std::string& from, const std::string& to,
                        Problems& problems) {
  const ConfigEntry* entry = zero.find_entry(from);
  if (entry == nullptr) return;
  const ConfigNode value = entry->value;
  const Position at = entry->at;
  zero.erase(from);
  if (value.kind != ConfigNodeKind::kBool && value.kind != ConfigNodeKind::kNull) {
    problems.error(value.at, cat("zero_optimization.", from, ": expected true or false, found ",
                                 value_text(value)));
    return;
  }
  const std::string key = cat("zero_optimization.", from);
  problems.notice(at, cat(key, ": deprecated; ", to, ": {device: cpu} is its new form"), "", key);
  if (!value.boolean) return;
  if (const ConfigNode* other = zero.find(to);
      other != nullptr && other->kind != ConfigNodeKind::kNull) {
    problems.error(
        at, cat("zero_optimization.", from, ": set together with ", to, ", which means the same"),
        cat("remove ", from));
    return;
  }
  zero.erase(to);
  ConfigNode section = ConfigNode::of_map(at);
  section.entries.push_back({"device", at, ConfigNode::of_text(at, "cpu"), ""});
  zero.entries.push_back({to, at, std::move(section), from});
}

void rename_bfloat16(ConfigNode& root, Problems& problems) {
  ConfigEntry* old = root.find_entry("bfloat16");
  if (old == nullptr) return;
  const ConfigNode* fresh = root.find("bf16");
  if (fresh != nullptr && fresh->kind != ConfigNodeKind::kNull) {
    problems.notice(old->at, "bfloat16: ignored because bf16 is set too, as in DeepSpeed");
    root.erase("bfloat16");
    return;
  }
  problems.notice(old->at, "bfloat16: read as bf16 (old spelling)");
  root.erase("bf16");
  old = root.find_entry("bfloat16");
  old->spelled_key = old->key;
  old->key = "bf16";
}

/// Drops keys without dashes from a gpt-neox file that is written with dashes; if the file has no
/// dashed keys, they are unknown keys.
void drop_gpt_neox_companions(ConfigNode& root, Problems& problems) {
  static const std::vector<std::string> kCompanions{"attention_config",
                                                    "autotuning_config",
                                                    "deepspeed_slurm",
                                                    "gpt_j_residual",
                                                    "init_method",
                                                    "launcher",
                                                    "min_lr",
                                                    "no_ssh_check",
                                                    "norm",
                                                    "output_layer_init_method",
                                                    "output_layer_parallelism",
                                                    "split",
                                                    "warmup"};
  const auto dashed = [](const ConfigEntry& entry) {
    return entry.key.find('-') != std::string::npos &&
           Schema::get().find_legacy("", entry.key) != nullptr;
  };
  if (std::count_if(root.entries.begin(), root.entries.end(), dashed) < 3) return;
  std::erase_if(root.entries, [&](const ConfigEntry& entry) {
    const bool companion =
        std::find(kCompanions.begin(), kCompanions.end(), entry.key) != kCompanions.end();
    if (companion) problems.notice(entry.at, cat(entry.key, ": ignored: a gpt-neox key"));
    return companion;
  });
}

/// Moves max_grad_norm, the name of other programs, to gradient_clipping.
void move_max_grad_norm(ConfigNode& root, ConfigNode& section, const std::string& spelled_path,
                        Problems& problems) {
  const ConfigEntry* found = section.find_entry("max_grad_norm");
  if (found == nullptr) return;
  const ConfigEntry old = *found;
  section.erase("max_grad_norm");
  const ConfigNode* clipping = root.find("gradient_clipping");
  if (clipping == nullptr) {
    problems.notice(old.at,
                    cat(spelled_path, ": read as gradient_clipping: ", value_text(old.value)));
    root.entries.push_back({"gradient_clipping", old.at, old.value, spelled_path});
  } else if (clipping->number != old.value.number ||
             clipping->is_unset_or_auto() != old.value.is_unset_or_auto()) {
    problems.error(old.at,
                   cat(spelled_path, ": ", value_text(old.value),
                       " contradicts gradient_clipping: ", value_text(*clipping), " (line ",
                       clipping->at.line, ")"),
                   "keep gradient_clipping");
  }
}

void move_max_grad_norms(ConfigNode& root, Problems& problems) {
  move_max_grad_norm(root, root, "max_grad_norm", problems);
  ConfigNode* optimizer = root.find("optimizer");
  ConfigNode* params = optimizer == nullptr ? nullptr : optimizer->find("params");
  if (params != nullptr)
    move_max_grad_norm(root, *params, "optimizer.params.max_grad_norm", problems);
}

/// Reads the setting that is implied by another program's name of an optimizer. ftrun keeps the
/// states that such programs page in main memory, by offloading.
void expand_optimizer_alias(ConfigNode& root, Problems& problems) {
  ConfigNode* optimizer = root.find("optimizer");
  const ConfigNode* type = optimizer == nullptr ? nullptr : optimizer->find("type");
  if (type == nullptr || type->kind != ConfigNodeKind::kText) return;
  const Position at = type->at;
  const std::string type_name = to_lower_case(type->text);
  for (const auto& [alias, name, sets] : optimizer_aliases()) {
    if (alias != type_name || sets.empty()) continue;
    if (alias.starts_with("paged_"))
      problems.notice(at, cat("optimizer.type: ", alias,
                              ": its states are not paged; "
                              "zero_optimization.offload_optimizer keeps them in main memory"));
    if (optimizer->find("params") == nullptr)
      optimizer->entries.push_back({"params", at, ConfigNode::of_map(at), ""});
    ConfigNode* params = optimizer->find("params");
    if (params->is_map() && params->find(sets) == nullptr)
      params->entries.push_back({std::string(sets), at, ConfigNode::of_bool(at, true), ""});
  }
}

/// Reads the path and the weight of `{path, weight}`. Reports anything else and returns false.
bool split_weighted(const ConfigNode& item, ConfigNode& paths, ConfigNode& weights,
                    Problems& problems) {
  const ConfigNode* path = item.find("path");
  if (path == nullptr) {
    problems.error(item.at,
                   cat("data.train: expected {path, weight} as in the other entries, found ",
                       value_text(item)),
                   "write each entry as {path: FILE, weight: NUMBER}");
    return false;
  }
  for (const ConfigEntry& entry : item.entries)
    if (entry.key != "path" && entry.key != "weight") {
      problems.error(entry.at, cat("data.train: unknown key \"", entry.key, "\" of a data set"),
                     "write only path and weight");
      return false;
    }
  const ConfigNode* weight = item.find("weight");
  paths.items.push_back(*path);
  weights.items.push_back(weight == nullptr ? ConfigNode::of_int(item.at, 1) : *weight);
  return true;
}

/// Splits `data.train: [{path, weight}]` into `data.train: [path]` and `data.train_weights:
/// [weight]`.
void split_weighted_train(ConfigNode& root, Problems& problems) {
  ConfigNode* data = root.find("data");
  ConfigEntry* train = data == nullptr ? nullptr : data->find_entry("train");
  if (train == nullptr || train->value.kind != ConfigNodeKind::kList) return;
  const std::vector<ConfigNode> items = train->value.items;
  if (std::none_of(items.begin(), items.end(),
                   [](const ConfigNode& item) { return item.is_map(); }))
    return;
  if (const ConfigEntry* other = data->find_entry("train_weights"); other != nullptr) {
    problems.error(other->at,
                   cat("data.train_weights: set together with the weights in data.train (line ",
                       train->at.line, ")"),
                   "keep one of the two");
    data->erase("train_weights");
    train = data->find_entry("train");
  }
  const Position at = train->value.at;
  ConfigNode paths, weights;
  paths.kind = weights.kind = ConfigNodeKind::kList;
  paths.at = weights.at = at;
  for (const ConfigNode& item : items)
    if (!split_weighted(item, paths, weights, problems)) break;
  train->value = std::move(paths);
  data->entries.push_back({"train_weights", at, std::move(weights), "train"});
}

/// Splits `data.validation: {a: X, b: [Y, Z]}` into `data.validation: [X, Y, Z]` and
/// `data.validation_names: [a, b, b]`.
void split_named_validation(ConfigNode& root, Problems& problems) {
  ConfigNode* data = root.find("data");
  ConfigEntry* validation = data == nullptr ? nullptr : data->find_entry("validation");
  if (validation == nullptr || !validation->value.is_map()) return;
  if (const ConfigEntry* other = data->find_entry("validation_names"); other != nullptr) {
    problems.error(
        other->at,
        cat("data.validation_names: set together with the names in data.validation (line ",
            validation->at.line, ")"),
        "keep one of the two");
    data->erase("validation_names");
    validation = data->find_entry("validation");
  }
  ConfigNode paths, names;
  paths.kind = names.kind = ConfigNodeKind::kList;
  paths.at = names.at = validation->value.at;
  for (const ConfigEntry& set : validation->value.entries) {
    const bool list = set.value.kind == ConfigNodeKind::kList;
    if (list && set.value.items.empty())
      problems.error(set.at, cat("data.validation.", set.key, ": names no file"),
                     "name one, or remove the set");
    for (const ConfigNode& path : list ? set.value.items : std::vector<ConfigNode>{set.value}) {
      paths.items.push_back(path);
      names.items.push_back(ConfigNode::of_text(set.at, set.key));
    }
  }
  const Position at = validation->value.at;
  validation->value = std::move(paths);
  data->entries.push_back({"validation_names", at, std::move(names), "validation"});
}

}  // namespace

DesugaredTree desugar(ConfigSourceTree source, Problems& problems) {
  ConfigNode& root = source.root;
  require(root.is_map(), "a source of a config is a map");
  move_max_grad_norms(root, problems);
  expand_optimizer_alias(root, problems);
  drop_gpt_neox_companions(root, problems);
  expand_zero_flag(root, problems);
  expand_plain_values(root, problems);
  rename_bfloat16(root, problems);
  split_weighted_train(root, problems);
  desugar_adapter(root, source.has_peft_adapter, problems);
  if (const std::optional<ConfigNode>& folder = source.adapter_folder)
    root.find("adapter")->entries.push_back({"path", folder->at, *folder, ""});
  desugar_quantization(root, problems);
  split_named_validation(root, problems);
  if (ConfigNode* zero = root.find("zero_optimization"); zero != nullptr && zero->is_map()) {
    expand_cpu_offload(*zero, "cpu_offload", "offload_optimizer", problems);
    expand_cpu_offload(*zero, "cpu_offload_param", "offload_param", problems);
    expand_cpu_offload(*zero, "cpu_offload_params", "offload_param", problems);
    rename_key(*zero, "zero_optimization", "stage3_gather_fp16_weights_on_model_save",
               "gather_16bit_weights_on_model_save", problems);
  }
  rename_aliases(root, "", problems);
  return DesugaredTree(std::move(root));
}

void DesugaredTree::merge(const DesugaredTree& later, Problems& problems) {
  remove_contradicted_keys(root_, later.root_, problems);
  merge_into(root_, later.root_);
}

}  // namespace ftrun
