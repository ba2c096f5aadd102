#include "config/frontend.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "config/schema.h"

namespace ftrun {
namespace {

std::string text_of(const Node* node) {
  return node == nullptr || node->kind == Node::Kind::kNull ? "" : node->text;
}

const NodeEntry* first_of(const Node& root, const std::vector<std::string>& keys) {
  for (const NodeEntry& entry : root.entries)
    if (std::find(keys.begin(), keys.end(), entry.key) != keys.end()) return &entry;
  return nullptr;
}

// The DeepSpeed keys that Accelerate itself builds from its plain ones.
std::string accelerate_as_deepspeed(const Node& root, const Node& plain) {
  const std::string stage = text_of(plain.find("zero_stage"));
  std::vector<std::string> zero{"stage: " + (stage.empty() ? "2" : stage)};
  for (const char* what : {"offload_optimizer", "offload_param"}) {
    const std::string device = text_of(plain.find(cat(what, "_device")));
    if (!device.empty() && device != "none") zero.push_back(cat(what, ": {device: ", device, "}"));
  }
  if (text_of(plain.find("zero3_save_16bit_model")) == "true")
    zero.push_back("stage3_gather_16bit_weights_on_model_save: true");
  std::vector<std::string> lines{cat("zero_optimization: {", join(zero, ", "), "}")};
  const std::string precision = text_of(root.find("mixed_precision"));
  if (precision == "bf16" || precision == "fp16") lines.push_back(precision + ": {enabled: true}");
  for (const char* key : {"gradient_accumulation_steps", "gradient_clipping"})
    if (const std::string value = text_of(plain.find(key)); !value.empty())
      lines.push_back(cat(key, ": ", value));
  return join(lines, "; ");
}

std::optional<Problem> accelerate(const Node& root) {
  const NodeEntry* sign = first_of(
      root, {"deepspeed_config", "distributed_type", "compute_environment", "fsdp_config"});
  if (sign == nullptr) return std::nullopt;
  Problem problem{sign->at, "this is a launcher file of Accelerate, not a training config", ""};
  const std::string processes = text_of(root.find("num_processes"));
  const std::string ranks = processes.empty() ? "" : cat(" with --nproc ", processes);
  const Node* plain = root.find("deepspeed_config");
  const std::string type = text_of(root.find("distributed_type"));
  if (!type.empty() && type != "DEEPSPEED") {
    problem.remedy = cat("its distributed_type ", type,
                         " uses no DeepSpeed config; write one and pass that with --config");
  } else if (plain == nullptr || !plain->is_map()) {
    problem.remedy = "write a DeepSpeed config and pass that with --config";
  } else if (const std::string file = text_of(plain->find("deepspeed_config_file"));
             !file.empty()) {
    problem.at = plain->find("deepspeed_config_file")->at;
    problem.remedy = cat("pass the file it names: --config ", file, ranks);
  } else {
    problem.remedy =
        cat("write what it stands for", ranks, ": ", accelerate_as_deepspeed(root, *plain));
  }
  return problem;
}

std::string underscored(std::string key) {
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

// The file's keys that a config may have too.
std::vector<std::string> known_keys(const Node& root) {
  std::vector<std::string> out;
  for (const NodeEntry& entry : root.entries) {
    const Field* field = Schema::get().find("", entry.key);
    if (Schema::get().find_section(entry.key) != nullptr ||
        (field != nullptr && field->action == Action::kImplement))
      out.push_back(entry.key);
  }
  return out;
}

// Underscored only: the few JSON files with dashes are DeepSpeed's own autotuning examples.
std::optional<Problem> gpt_neox(const Node& root) {
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
  const NodeEntry* first = nullptr;
  int found = 0;
  bool dashed = false;
  for (const NodeEntry& entry : root.entries) {
    const std::string key = underscored(entry.key);
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) continue;
    if (first == nullptr) first = &entry;
    dashed = dashed || key != entry.key;
    ++found;
  }
  const bool json = first != nullptr && first->at.file.ends_with(".json");
  if (found < 3 || (dashed && json)) return std::nullopt;
  const std::vector<std::string> kept = known_keys(root);
  const std::string moved = kept.empty() ? ""
                                         : cat("move its DeepSpeed keys (", join(kept, ", "),
                                               ") into a config of their own and ");
  return Problem{first->at, "this is a gpt-neox file: it builds its model from keys of its own",
                 moved + "name a Hugging Face folder as model.path"};
}

bool holds_component(const Node& node) {
  if (node.find("_component_") != nullptr) return true;
  return std::any_of(node.entries.begin(), node.entries.end(),
                     [](const NodeEntry& entry) { return holds_component(entry.value); });
}

struct Sign {
  std::vector<std::string> keys;
  const char* program;
};

}  // namespace

std::optional<Problem> foreign_front_end(const Node& root) {
  if (!root.is_map()) return std::nullopt;
  if (auto problem = accelerate(root)) return problem;
  if (auto problem = gpt_neox(root)) return problem;
  const std::string remedy =
      "write a config with model.path, data.train and DeepSpeed's keys; docs/config.md lists all";
  if (holds_component(root))
    return Problem{root.entries.front().at, "this is a recipe config of torchtune", remedy};
  static const std::vector<Sign> kSigns{
      {{"base_model", "adapter", "datasets", "val_set_size"}, "a config of axolotl"},
      {{"finetuning_type", "dataset_dir", "cutoff_len", "template"}, "a config of LLaMA-Factory"},
      {{"per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type", "save_steps"},
       "a file of Hugging Face TrainingArguments"},
  };
  for (const Sign& sign : kSigns)
    if (const NodeEntry* entry = first_of(root, sign.keys); entry != nullptr)
      return Problem{entry->at, cat("this is ", sign.program, " (key \"", entry->key, "\")"),
                     remedy};
  return std::nullopt;
}

}  // namespace ftrun
