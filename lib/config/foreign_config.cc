#include "config/foreign_config.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "config/schema.h"

namespace ftrun {
namespace {

const ConfigEntry* find_first_entry(const ConfigNode& root, const std::vector<std::string>& keys) {
  for (const ConfigEntry& entry : root.entries)
    if (std::find(keys.begin(), keys.end(), entry.key) != keys.end()) return &entry;
  return nullptr;
}

std::string underscored(std::string key) {
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

/// Lists the keys of the file that a config may also have.
std::vector<std::string> list_shared_keys(const ConfigNode& root) {
  std::vector<std::string> out;
  for (const ConfigEntry& entry : root.entries) {
    const Field* field = Schema::get().find("", entry.key);
    if (Schema::get().find_section(entry.key) != nullptr ||
        (field != nullptr && field->support == KeySupport::kApply))
      out.push_back(entry.key);
  }
  return out;
}

/// Recognizes a gpt-neox file. JSON files with dashes are not counted as such: the few that exist
/// are examples of DeepSpeed's autotuning.
std::optional<Problem> find_gpt_neox_problem(const ConfigNode& root) {
  static const std::vector<std::string> kKeys{"pipe_parallel_size",
                                              "model_parallel_size",
                                              "num_layers",
                                              "hidden_size",
                                              "num_attention_heads",
                                              "seq_length",
                                              "max_position_embeddings",
                                              "pos_emb",
                                              "train_iters",
                                              "lr_decay_style",
                                              "lr_decay_iters",
                                              "data_path",
                                              "data_impl",
                                              "train_data_paths",
                                              "checkpoint_activations",
                                              "attention_config",
                                              "distributed_backend",
                                              "tokenizer_type",
                                              "vocab_file",
                                              "launcher",
                                              "use_wandb",
                                              "wandb_project",
                                              "log_dir",
                                              "tensorboard_dir",
                                              "save",
                                              "load"};
  const ConfigEntry* first = nullptr;
  int gpt_neox_keys = 0;
  bool dashed = false;
  for (const ConfigEntry& entry : root.entries) {
    const std::string key = underscored(entry.key);
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) continue;
    if (first == nullptr) first = &entry;
    dashed = dashed || key != entry.key;
    ++gpt_neox_keys;
  }
  const bool json = first != nullptr && first->at.file.ends_with(".json");
  if (gpt_neox_keys < 3 || (dashed && json)) return std::nullopt;
  const std::vector<std::string> shared_keys = list_shared_keys(root);
  const std::string move_advice = shared_keys.empty()
                                      ? ""
                                      : cat("move its DeepSpeed keys (", join(shared_keys, ", "),
                                            ") into a separate config and ");
  return Problem{first->at, "this is a gpt-neox file: it builds its model from its own keys",
                 move_advice + "name a Hugging Face folder as model.path"};
}

bool holds_component(const ConfigNode& node) {
  if (node.find("_component_") != nullptr) return true;
  return std::any_of(node.entries.begin(), node.entries.end(),
                     [](const ConfigEntry& entry) { return holds_component(entry.value); });
}

/// ProgramMarker lists keys that only the files of one program have.
struct ProgramMarker {
  std::vector<std::string> keys;
  const char* program;
};

}  // namespace

std::optional<Problem> find_foreign_config_problem(const ConfigNode& root) {
  if (!root.is_map()) return std::nullopt;
  if (auto problem = find_gpt_neox_problem(root)) return problem;
  const std::string remedy =
      "write a config with model.path, data.train and DeepSpeed's keys; docs/config.md lists all";
  if (holds_component(root))
    return Problem{root.entries.front().at, "this is a recipe config of torchtune", remedy};
  static const std::vector<ProgramMarker> kMarkers{
      {{"base_model", "datasets", "val_set_size"}, "a config of axolotl"},
      {{"finetuning_type", "dataset_dir", "cutoff_len", "template"}, "a config of LLaMA-Factory"},
      {{"per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type", "save_steps"},
       "a file of Hugging Face TrainingArguments"},
  };
  for (const ProgramMarker& marker : kMarkers)
    if (const ConfigEntry* entry = find_first_entry(root, marker.keys); entry != nullptr)
      return Problem{entry->at, cat("this is ", marker.program, " (key \"", entry->key, "\")"),
                     remedy};
  return std::nullopt;
}

}  // namespace ftrun
