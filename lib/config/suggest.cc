#include "config/suggest.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "config/schema.h"

namespace ftrun {
namespace {

/// Synonym is a word that another program uses for a key, and the key.
struct Synonym {
  const char* word;
  const char* path;
};
constexpr Synonym kSynonyms[] = {
    {"seq_length", "data.sequence_length"},
    {"seq_len", "data.sequence_length"},
    {"max_seq_length", "data.sequence_length"},
    {"max_seq_len", "data.sequence_length"},
    {"max_length", "data.sequence_length"},
    {"block_size", "data.sequence_length"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"per_device_batch_size", "train_micro_batch_size_per_gpu"},
    {"global_batch_size", "train_batch_size"},
    {"grad_accumulation_steps", "gradient_accumulation_steps"},
    {"max_steps", "train.steps"},
    {"train_iters", "train.steps"},
    {"num_epochs", "train.epochs"},
    {"num_train_epochs", "train.epochs"},
    {"lr_scheduler", "scheduler"},
    {"max_grad_norm", "gradient_clipping"},
    {"clip_grad", "gradient_clipping"},
    {"model_path", "model.path"},
    {"model_name_or_path", "model.path"},
    {"pretrained_model_name_or_path", "model.path"},
    {"base_model", "model.path"},
    {"lora", "adapter"},
    {"peft_config", "adapter"},
    {"rank", "adapter.r"},
    {"lora_r", "adapter.r"},
    {"lora_rank", "adapter.r"},
    {"alpha", "adapter.lora_alpha"},
    {"dropout", "adapter.lora_dropout"},
    {"lora_target", "adapter.target_modules"},
    {"lora_target_modules", "adapter.target_modules"},
    {"data_path", "data.train"},
    {"dataset", "data.train"},
    {"save_steps", "checkpoint.every"},
    {"save_interval", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep_last"},
    {"eval_steps", "train.evaluation.every"},
    {"eval_interval", "train.evaluation.every"},
    {"log_interval", "train.log.every"},
    {"logging_steps", "train.log.every"},
    {"gradient_checkpointing", "recompute"},
    {"nproc", "parallel.data"},
    {"dp", "parallel.data"},
    {"tp", "parallel.tensor"},
    {"tp_size", "parallel.tensor"},
    {"tensor_parallel_size", "parallel.tensor"},
    {"tensor_model_parallel_size", "parallel.tensor"},
    {"autotp_size", "parallel.tensor"},
    {"sequence_parallel", "parallel.sequence"},
    {"pp", "parallel.pipeline"},
    {"pp_size", "parallel.pipeline"},
    {"pipeline_parallel_size", "parallel.pipeline"},
    {"pipeline_model_parallel_size", "parallel.pipeline"},
    {"pipeline_schedule", "parallel.schedule"},
    {"num_virtual_stages", "parallel.virtual_stages"},
    {"cp", "parallel.context"},
    {"ep", "parallel.expert"},
};

std::string find_synonym(const std::string& section, const std::string& key) {
  if (section == "train" && key == "lr") return "learning_rate";
  if (section == "optimizer.params" && key == "learning_rate") return "lr";
  std::string word = key;
  std::replace(word.begin(), word.end(), '-', '_');
  for (const Synonym& synonym : kSynonyms) {
    if (word != synonym.word) continue;
    const std::string path = synonym.path;
    const bool inside = !section.empty() && path.rfind(section + ".", 0) == 0;
    return inside ? path.substr(section.size() + 1) : path;
  }
  return "";
}

std::string find_containing_key(const std::string& word,
                                const std::vector<std::string>& candidates) {
  if (word.size() < 4) return "";
  for (const std::string& name : candidates)
    if (name.find(word) != std::string::npos) return name;
  return "";
}

/// Finds a key of another section whose name is similar.
std::string find_similar_elsewhere(const std::string& section, const std::string& key) {
  std::vector<std::string> names;
  for (const Field& field : Schema::get().fields())
    if (field.section != section) names.push_back(field.name);
  const std::string name = closest_match(key, names);
  if (name.empty() || edit_distance(key, name) > 2) return "";
  return Schema::get().paths_named(name).front();
}

}  // namespace

std::string key_suggestion(const std::string& section, const std::string& key,
                           const std::vector<std::string>& candidates) {
  const Schema& schema = Schema::get();
  std::string near = closest_match(key, candidates);
  if (!near.empty() && edit_distance(key, near) <= 1) return did_you_mean(near);
  if (const std::string meant = find_synonym(section, key); !meant.empty())
    return did_you_mean(meant);
  // A similar key in the section that the user wrote is more likely than the same name elsewhere.
  const auto elsewhere = schema.paths_named(key);
  if (!elsewhere.empty() && (section.empty() || near.empty()))
    return did_you_mean(elsewhere.front());
  if (near.empty()) near = find_containing_key(key, candidates);
  if (near.empty()) near = find_similar_elsewhere(section, key);
  return did_you_mean(near);
}

}  // namespace ftrun
