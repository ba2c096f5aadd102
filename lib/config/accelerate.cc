#include "config/accelerate.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "axes/keys.h"
#include "base/error.h"
#include "base/text.h"
#include "config/ranks.h"

namespace ftrun {
namespace {

using KeyNames = std::vector<std::string_view>;

// Keys whose presence marks a file as one of Accelerate.
const KeyNames kMarkerKeys{"deepspeed_config", "distributed_type", "compute_environment",
                           "fsdp_config"};

// IgnoredKey is a key that has no meaning in ftrun, with the reason if that helps.
struct IgnoredKey {
  std::string_view name;
  const char* reason;
};
constexpr const char* kLauncher = "set by the launcher";
constexpr IgnoredKey kIgnoredKeys[] = {
    {"compute_environment", ""},
    {"debug", ""},
    {"machine_rank", kLauncher},
    {"main_process_ip", kLauncher},
    {"main_process_port", kLauncher},
    {"main_training_function", ""},
    {"rdzv_backend", kLauncher},
    {"same_network", ""},
    {"mpirun_config", kLauncher},
    {"gpu_ids", "set by CUDA_VISIBLE_DEVICES"},
    {"enable_cpu_affinity", ""},
    {"downcast_bf16", "for TPUs only"},
    {"tpu_env", "for TPUs only"},
    {"tpu_name", "for TPUs only"},
    {"tpu_zone", "for TPUs only"},
    {"tpu_use_cluster", "for TPUs only"},
    {"tpu_use_sudo", "for TPUs only"},
    {"tpu_vm", "for TPUs only"},
    {"dynamo_backend", "torch.compile: speed only"},
    {"dynamo_config", "torch.compile: speed only"},
    {"fp8_config", ""},
    {"ipex_config", ""},
    {"megatron_lm_config", ""},
    {"fsdp_config", "for another distributed_type"},
    {"commands", ""},
    {"command_file", ""},
};
constexpr IgnoredKey kIgnoredBlockKeys[] = {
    {"zero3_init_flag", "ranks read their own parts of the weights"},
    {"deepspeed_multinode_launcher", kLauncher},
    {"deepspeed_hostfile", kLauncher},
    {"deepspeed_exclusion_filter", kLauncher},
    {"deepspeed_inclusion_filter", kLauncher},
    {"deepspeed_moe_layer_cls_names", ""},
};

// KeyTranslation is a key of the deepspeed_config block and the key of ftrun with the same meaning.
struct KeyTranslation {
  const char* name;
  const char* path;
};
constexpr KeyTranslation kBlockKeys[] = {
    {"zero_stage", "zero_optimization.stage"},
    {"gradient_accumulation_steps", "gradient_accumulation_steps"},
    {"gradient_clipping", "gradient_clipping"},
    {"offload_optimizer_device", "zero_optimization.offload_optimizer.device"},
    {"offload_optimizer_nvme_path", "zero_optimization.offload_optimizer.nvme_path"},
    {"offload_param_device", "zero_optimization.offload_param.device"},
    {"offload_param_nvme_path", "zero_optimization.offload_param.nvme_path"},
    {"zero3_save_16bit_model", "zero_optimization.gather_16bit_weights_on_model_save"},
};

// Sizes in parallelism_config, without their prefix, and the degrees that they set.
constexpr const char* kMeshPrefix = "parallelism_config_";
constexpr KeyTranslation kMeshKeys[] = {
    {"tp_size", "parallel.tensor"},
    {"cp_size", "parallel.context"},
    {"sp_size", "sequence_parallel_size"},
    {"ep_size", "parallel.expert"},
};
constexpr IgnoredKey kIgnoredMeshKeys[] = {
    {"dp_shard_size", "it follows from num_processes"},
    {"dp_replicate_size", ""},
    {"cp_backend", ""},
    {"cp_comm_strategy", ""},
    {"sp_backend", ""},
    {"sp_seq_length", ""},
    {"sp_seq_length_is_variable", ""},
    {"sp_attn_implementation", ""},
};

bool contains(const KeyNames& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string text_of(const ConfigNode* node) {
  return node == nullptr || node->kind == ConfigNodeKind::kNull ? "" : node->text;
}

/// Returns a degree; 1 if it is not written or is not a number.
int64_t degree_of(const ConfigNode* node) {
  return node == nullptr || node->kind != ConfigNodeKind::kInt
             ? 1
             : std::max<int64_t>(1, node->integer);
}

/// Returns whether a value is set: Accelerate writes "none" or "None" for a value that is not.
bool is_set(const ConfigNode& value) {
  return value.kind != ConfigNodeKind::kNull && value.text != "none" && value.text != "None";
}

/// Puts a value at "a.b.c"; creates missing sections.
void put_at_path(ConfigNode& map, std::string_view path, ConfigNode value) {
  const size_t dot = path.find('.');
  const std::string key(path.substr(0, dot));
  if (dot == std::string_view::npos) {
    map.entries.push_back({key, value.at, std::move(value), ""});
    return;
  }
  if (map.find(key) == nullptr)
    map.entries.push_back({key, value.at, ConfigNode::of_map(value.at), ""});
  put_at_path(*map.find(key), path.substr(dot + 1), std::move(value));
}

/// AccelerateTranslator turns one Accelerate file into one config.
class AccelerateTranslator {
 public:
  AccelerateTranslator(const ConfigNode& root, const ConfigNode& deepspeed_config,
                       Problems& problems)
      : root_(root),
        deepspeed_config_(deepspeed_config),
        problems_(problems),
        config_(ConfigNode::of_map(root.at)) {
    const ConfigNode* block = root.find("deepspeed_config");
    if (block != nullptr && block->is_map()) block_ = block;
    type_ = text_of(root.find("distributed_type"));
    if (type_.empty()) type_ = block_ != nullptr ? "DEEPSPEED" : "NO";
  }

  ConfigNode translate() {
    if (!contains({"DEEPSPEED", "NO", "MULTI_GPU", "MULTI_CPU", "TP"}, type_)) {
      refuse();
      return ConfigNode::of_map(root_.at);
    }
    if (type_ == "DEEPSPEED" && block_ != nullptr) read_block();
    read_precision();
    read_mesh();
    read_processes();
    if (const ConfigNode* cpu = root_.find("use_cpu"); cpu != nullptr && cpu->boolean)
      put_at_path(config_, "device", ConfigNode::of_text(cpu->at, "cpu"));
    report_keys_without_meaning();
    return std::move(config_);
  }

 private:
  void read_block() {
    const bool has_file = find_deepspeed_config_file(root_) != nullptr;
    for (const auto& [name, path] : kBlockKeys) {
      const ConfigNode* value = block_->find(name);
      if (value == nullptr || !is_set(*value)) continue;
      if (has_file)
        problems_.error(value->at,
                        cat("deepspeed_config.", name, ": set together with deepspeed_config_file"),
                        cat("write ", path, " in that file, as Accelerate asks"));
      else
        put_at_path(config_, path, *value);
    }
    if (!has_file && block_->find("zero_stage") == nullptr)
      put_at_path(config_, "zero_optimization.stage",
                  ConfigNode::of_int(block_->at, 2));  // Accelerate's default
  }

  // Sets the precision if the named DeepSpeed file does not.
  void read_precision() {
    const ConfigNode* precision = root_.find("mixed_precision");
    if (precision == nullptr || precision->kind == ConfigNodeKind::kNull) return;
    const std::string word = precision->text;
    if (!contains({"no", "bf16", "fp16", "false"}, word)) {
      problems_.error(precision->at, cat("mixed_precision: ftrun has no ", word), "use bf16");
      return;
    }
    for (const char* dtype : {"bf16", "fp16"}) {
      const std::string path = cat(dtype, ".enabled");
      const ConfigNode* written = deepspeed_config_.at_path(path);
      const bool is_requested = word == dtype,
                 is_open = written == nullptr || written->is_unset_or_auto();
      if (is_open && (is_requested || written != nullptr))
        put_at_path(config_, path, ConfigNode::of_bool(precision->at, is_requested));
      if (is_open || is_requested == written->boolean || word == "no" || word == "false") continue;
      problems_.error(precision->at,
                      cat("mixed_precision ", word, " contradicts ", path, " ",
                          value_text(*written), " (", to_text(written->at), ")"),
                      "keep one of the two, or write \"auto\" in that file");
      return;
    }
  }

  const ConfigNode* mesh_size(const std::string& name) const {
    return root_.at_path(cat("parallelism_config.", kMeshPrefix, name));
  }

  int64_t tensor_degree() const {
    return std::max(degree_of(mesh_size("tp_size")), degree_of(root_.at_path("tp_config.tp_size")));
  }

  void read_mesh() {
    for (const auto& [name, path] : kMeshKeys)
      if (const ConfigNode* size = mesh_size(name); size != nullptr && degree_of(size) > 1)
        put_at_path(config_, path, *size);
    if (const ConfigNode* size = root_.at_path("tp_config.tp_size"); degree_of(size) > 1)
      put_at_path(config_, "parallel.tensor", *size);
    // Replicas that consist of one rank each are plain data parallelism.
    const ConfigNode* replicas = mesh_size("dp_replicate_size");
    if (degree_of(replicas) > 1 && degree_of(mesh_size("dp_shard_size")) > 1)
      put_at_path(config_, "parallel.data_replicate", *replicas);
  }

  // Returns the largest degree that is written under any of `paths`: in this file, in the named
  // file, or among ftrun's own keys next to Accelerate's.
  int64_t largest_written_degree(const KeyNames& paths) const {
    int64_t degree = 1;
    for (const std::string_view path : paths)
      for (const ConfigNode* from :
           {&root_, &deepspeed_config_, static_cast<const ConfigNode*>(&config_)})
        degree = std::max(degree, degree_of(from->at_path(std::string(path))));
    return degree;
  }

  // Sets parallel.data, which counts ranks with different samples, whereas num_processes counts all
  // ranks.
  void put_data_ranks(const ConfigNode& processes) {
    ParallelConfig mesh;
    for (const AxisKeys* axis : kAxes)
      if (axis->ranks.value == AxisRanks::kModel)
        axis->degree_in(mesh) = largest_written_degree(axis->degree_keys());
    const int64_t ranks_per_model = model_ranks(mesh), ranks = processes.integer;
    if (ranks_per_model == 1 || processes.kind != ConfigNodeKind::kInt)
      put_at_path(config_, "parallel.data", processes);
    else if (ranks_per_model == 0 || ranks % ranks_per_model != 0)
      problems_.error(
          processes.at, cat("num_processes ", ranks, " cannot be divided by ", model_degrees(mesh)),
          "write a number that can be divided: it counts all ranks, and the quotient is the number "
          "of data-parallel ranks");
    else
      put_at_path(config_, "parallel.data",
                  ConfigNode::of_int(processes.at, ranks / ranks_per_model));
  }

  // Reads the number of processes. On one machine ftrun starts all ranks; on several machines a
  // launcher starts them.
  void read_processes() {
    const ConfigNode* processes = root_.find("num_processes");
    const ConfigNode* machines = root_.find("num_machines");
    if (machines != nullptr && machines->integer > 1) {
      problems_.notice(
          machines->at,
          cat("num_machines ", machines->text,
              ": start ftrun on each of them with torchrun, srun or mpirun",
              processes == nullptr ? "" : cat(", ", processes->text, " ranks in all")));
      return;
    }
    if (processes != nullptr && is_set(*processes)) put_data_ranks(*processes);
  }

  // Adds one notice that names all keys without a meaning here. Keys that are not Accelerate's are
  // read as keys of a config.
  void report_keys_without_meaning() {
    std::vector<std::string> ignored_keys;
    const ConfigEntry* first = nullptr;
    const auto name = [&](const ConfigEntry& entry, const std::string& shown,
                          const IgnoredKey& key) {
      if (first == nullptr) first = &entry;
      ignored_keys.push_back(cat(shown, *key.reason == '\0' ? "" : cat(" (", key.reason, ")")));
    };
    const bool reads_block = type_ == "DEEPSPEED";
    for (const ConfigEntry& entry : root_.entries) {
      const IgnoredKey* known =
          std::find_if(std::begin(kIgnoredKeys), std::end(kIgnoredKeys),
                       [&](const IgnoredKey& key) { return key.name == entry.key; });
      if (known != std::end(kIgnoredKeys))
        name(entry, entry.key, *known);
      else if (entry.key == "deepspeed_config" && !reads_block)
        name(entry, entry.key, {"", "for another distributed_type"});
      else if (!contains(
                   {"deepspeed_config", "distributed_type", "mixed_precision", "num_processes",
                    "num_machines", "use_cpu", "parallelism_config", "tp_config"},
                   entry.key))
        config_.entries.push_back(entry);
    }
    if (block_ != nullptr && reads_block)
      for (const ConfigEntry& entry : block_->entries) report_block_key(entry, name);
    if (const ConfigNode* mesh = root_.find("parallelism_config"); mesh != nullptr)
      for (const ConfigEntry& entry : mesh->entries) report_mesh_key(entry, name);
    if (first != nullptr)
      problems_.notice(first->at,
                       cat("a launcher file of Accelerate; its keys without meaning here: ",
                           join(ignored_keys, ", ")));
  }

  template <typename Name>
  void report_block_key(const ConfigEntry& entry, const Name& name) {
    const std::string shown = "deepspeed_config." + entry.key;
    for (const IgnoredKey& key : kIgnoredBlockKeys)
      if (key.name == entry.key) return name(entry, shown, key);
    const bool is_read =
        entry.key == "deepspeed_config_file" ||
        std::any_of(std::begin(kBlockKeys), std::end(kBlockKeys),
                    [&](const KeyTranslation& plain) { return plain.name == entry.key; });
    if (!is_read) problems_.error(entry.at, cat(shown, ": unknown key"));
  }

  template <typename Name>
  void report_mesh_key(const ConfigEntry& entry, const Name& name) {
    const std::string shown = "parallelism_config." + entry.key;
    const auto is = [&](const auto& known) { return cat(kMeshPrefix, known.name) == entry.key; };
    const auto known = std::find_if(std::begin(kIgnoredMeshKeys), std::end(kIgnoredMeshKeys), is);
    if (known != std::end(kIgnoredMeshKeys)) return name(entry, shown, *known);
    if (!std::any_of(std::begin(kMeshKeys), std::end(kMeshKeys), is))
      problems_.error(entry.at, cat(shown, ": unknown key"));
  }

  void refuse() {
    const ConfigNode* type = root_.find("distributed_type");
    if (type_ == "FSDP")
      problems_.error(
          type->at,
          "distributed_type FSDP: an fsdp_config is not read; ftrun shards with ZeRO instead",
          cat("write these keys instead: ", fsdp_as_ftrun_keys()));
    else if (type_ == "MEGATRON_LM" && !megatron_as_ftrun_keys().empty())
      problems_.error(type->at, "distributed_type MEGATRON_LM: a megatron_lm_config is not read",
                      cat("write these keys instead: ", megatron_as_ftrun_keys()));
    else
      problems_.error(type->at, cat("distributed_type ", type_, ": ftrun has no such backend"),
                      "write a config with model.path, data.train and DeepSpeed's keys");
  }

  std::string fsdp_value(const char* key) const {
    const ConfigNode* fsdp = root_.find("fsdp_config");
    return fsdp == nullptr ? "" : text_of(fsdp->find(key));
  }

  // Describes FSDP settings as ftrun's keys: "zero_optimization: {stage: 3}; bf16: {enabled: true};
  // parallel: {data: 8}"
  std::string fsdp_as_ftrun_keys() const {
    const std::string strategy = fsdp_value("fsdp_sharding_strategy");
    const bool hybrid = strategy.starts_with("HYBRID") || strategy == "4" || strategy == "5";
    const bool keeps = contains({"SHARD_GRAD_OP", "2", "HYBRID_SHARD_ZERO2", "5"}, strategy) ||
                       fsdp_value("fsdp_reshard_after_forward") == "false";
    const int stage = contains({"NO_SHARD", "3"}, strategy) ? 0 : keeps ? 2 : 3;
    std::vector<std::string> zero{cat("stage: ", stage)};
    if (fsdp_value("fsdp_offload_params") == "true" && stage > 0) {
      if (stage == 3) zero.emplace_back("offload_param: {device: cpu}");
      zero.emplace_back("offload_optimizer: {device: cpu}");
    }
    std::vector<std::string> lines{cat("zero_optimization: {", join(zero, ", "), "}")};
    const std::string precision = text_of(root_.find("mixed_precision"));
    if (precision == "bf16" || precision == "fp16")
      lines.push_back(precision + ": {enabled: true}");
    if (fsdp_value("fsdp_activation_checkpointing") == "true")
      lines.emplace_back("recompute: full");
    if (fsdp_value("fsdp_auto_wrap_policy") == "NO_WRAP")
      lines.emplace_back("partition: {unit: model}");
    if (const std::string mesh = fsdp_mesh_text(hybrid); !mesh.empty())
      lines.push_back(cat("parallel: {", mesh, "}"));
    return join(lines, "; ");
  }

  std::string megatron_value(const char* key) const {
    return text_of(root_.at_path(cat("megatron_lm_config.megatron_lm_", key)));
  }

  // Describes Megatron settings as ftrun's keys: "parallel: {data: 2, tensor: 4};
  // zero_optimization: {stage: 1}; recompute: selective"
  std::string megatron_as_ftrun_keys() const {
    const ConfigNode* megatron = root_.find("megatron_lm_config");
    if (megatron == nullptr || megatron->entries.empty()) return "";
    ParallelConfig mesh;
    mesh.tensor = degree_of(megatron->find("megatron_lm_tp_degree"));
    mesh.pipeline = degree_of(megatron->find("megatron_lm_pp_degree"));
    std::vector<std::string> degrees = degree_texts(mesh);
    if (mesh.tensor > 1 && megatron_value("sequence_parallelism") == "false")
      degrees.emplace_back("sequence: false");
    std::vector<std::string> lines;
    if (!degrees.empty()) lines.push_back(cat("parallel: {", join(degrees, ", "), "}"));
    if (megatron_value("use_distributed_optimizer") == "true")
      lines.emplace_back("zero_optimization: {stage: 1}");
    if (megatron_value("recompute_activations") == "true")
      lines.emplace_back("recompute: selective");
    for (const auto& [name, path] :
         {KeyTranslation{"gradient_clipping", "gradient_clipping"},
          KeyTranslation{"num_micro_batches", "gradient_accumulation_steps"}})
      if (const std::string value = megatron_value(name); !value.empty())
        lines.push_back(cat(path, ": ", value));
    const std::string precision = text_of(root_.find("mixed_precision"));
    if (precision == "bf16" || precision == "fp16")
      lines.push_back(precision + ": {enabled: true}");
    return join(lines, "; ");
  }

  // Lists {"data: 2", "tensor: 4"}: num_processes divided by the other degrees, and these degrees.
  std::vector<std::string> degree_texts(const ParallelConfig& mesh) const {
    std::vector<std::string> parts;
    const ConfigNode* processes = root_.find("num_processes");
    const int64_t ranks_per_model = model_ranks(mesh), ranks = degree_of(processes);
    if (!text_of(processes).empty() && ranks_per_model != 0 && ranks % ranks_per_model == 0)
      parts.push_back(cat("data: ", ranks / ranks_per_model));
    const std::vector<std::string> others = model_degrees(mesh, ": ");
    parts.insert(parts.end(), others.begin(), others.end());
    return parts;
  }

  std::string fsdp_mesh_text(bool hybrid) const {
    ParallelConfig mesh;
    mesh.tensor = tensor_degree();
    std::vector<std::string> parts = degree_texts(mesh);
    const std::string machines = text_of(root_.find("num_machines"));
    if (hybrid) parts.push_back("data_replicate: " + (machines.empty() ? "1" : machines));
    return join(parts, ", ");
  }

  const ConfigNode& root_;
  const ConfigNode& deepspeed_config_;
  Problems& problems_;
  const ConfigNode* block_ = nullptr;
  std::string type_;
  ConfigNode config_;
};

}  // namespace

bool is_accelerate_file(const ConfigNode& root) {
  return root.is_map() &&
         std::any_of(root.entries.begin(), root.entries.end(),
                     [](const ConfigEntry& entry) { return contains(kMarkerKeys, entry.key); });
}

const ConfigNode* find_deepspeed_config_file(const ConfigNode& root) {
  const std::string type = text_of(root.find("distributed_type"));
  if (!type.empty() && type != "DEEPSPEED") return nullptr;
  const ConfigNode* file = root.at_path("deepspeed_config.deepspeed_config_file");
  return file == nullptr || !is_set(*file) ? nullptr : file;
}

ConfigNode translate_accelerate_file(const ConfigNode& root, const ConfigNode& deepspeed_config,
                                     Problems& problems) {
  return AccelerateTranslator(root, deepspeed_config, problems).translate();
}

}  // namespace ftrun
