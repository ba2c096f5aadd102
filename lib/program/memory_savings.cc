#include "program/memory_savings.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "config/resolve.h"
#include "optimizers/optimizers.h"
#include "program/step_plan.h"

namespace ftrun {
namespace {

/// SettingChange is one change of a config, as text, and the changed config.
struct SettingChange {
  std::string change;
  Config config;
};

/// SettingChanges collects the configs that differ from one config in one setting.
class SettingChanges {
 public:
  explicit SettingChanges(const Config& config) : config_(config) {
    add_sharding_changes();
    add_recompute_changes();
    add_offload_changes();
    add_batch_changes();
    add_precision_changes();
    add_save_changes();
  }
  std::vector<SettingChange> release() { return std::move(changes_); }

 private:
  /// Adds a changed config; `text` begins with the key that the change sets.
  template <typename Change>
  void add(std::string text, Change change) {
    changes_.push_back({std::move(text), config_});
    SettingChange& alternative = changes_.back();
    mark_written(alternative.config, alternative.change.substr(0, alternative.change.find(':')));
    change(alternative.config);
  }

  /// Marks a key as written: checks distinguish written keys from those that follow from others.
  static void mark_written(Config& config, const std::string& key) {
    config.origins.keys[key].is_auto = false;
  }

  /// Sets nvme_path where the config has none, because a plan with offload to disk needs some
  /// folder; any name will do.
  static void name_folders(ZeroConfig& zero) {
    std::string& optimizer = zero.offload_optimizer.nvme_path;
    std::string& parameters = zero.offload_param.nvme_path;
    if (optimizer.empty()) optimizer = parameters.empty() ? "nvme_path" : parameters;
    if (parameters.empty()) parameters = optimizer;
  }

  /// Sets the stage; overlap_comm follows the new stage's default where the config left it open.
  static void set_stage(ZeroConfig& zero, int64_t stage) {
    if (zero.overlap_comm == (zero.stage == 3)) zero.overlap_comm = stage == 3;
    zero.stage = stage;
  }

  void add_sharding_changes() {
    if (rank_mesh(config_).group_size(kStateAxes) < 2 && config_.parallel.data < 2) return;
    for (int64_t stage = config_.zero.stage + 1; stage <= 3; ++stage)
      add(cat("zero_optimization.stage: ", stage), [&](Config& c) { set_stage(c.zero, stage); });
    if (config_.zero.stage > 0 && config_.parallel.data_replicate > 1)
      add("parallel.data_replicate: 1", [](Config& c) { c.parallel.data_replicate = 1; });
    if (config_.zero.stage == 3 && config_.zero.max_reuse_distance > 0)
      add("zero_optimization.stage3_max_reuse_distance: 0",
          [](Config& c) { c.zero.max_reuse_distance = 0; });
    if (config_.zero.stage == 3 && config_.zero.param_persistence_threshold > 0)
      add("zero_optimization.stage3_param_persistence_threshold: 0",
          [](Config& c) { c.zero.param_persistence_threshold = 0; });
    if (secondary_shards(config_) > 1)
      add("zero_optimization.zero_hpz_partition_size: 1",
          [](Config& c) { c.zero.hpz_partition_size = 1; });
  }

  void add_recompute_changes() {
    const auto policy = [&](RecomputeLevel wanted) {
      if (config_.recompute.policy < wanted || config_.recompute.every > 1)
        add(cat("recompute.policy: ", name_of(wanted)), [&](Config& c) {
          c.recompute = {wanted, 1};
        });
    };
    policy(RecomputeLevel::kFull);
    if (config_.recompute.policy == RecomputeLevel::kNone) policy(RecomputeLevel::kSelective);
  }

  void add_offload_changes() {
    const ZeroConfig& zero = config_.zero;
    // Targets nearer to the device are tried too: they help if the disk is too small.
    for (const OffloadDevice device :
         {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
      const char* needs = device == OffloadDevice::kNvme ? " (with nvme_path)" : "";
      if (zero.stage >= 1 && zero.offload_optimizer.device != device)
        add(cat("zero_optimization.offload_optimizer.device: ", name_of(device), needs),
            [&](Config& c) {
              c.zero.offload_optimizer.device = device;
              name_folders(c.zero);
            });
      if (zero.stage == 3 && zero.offload_param.device != device)
        add(cat("zero_optimization.offload_param.device: ", name_of(device), needs),
            [&](Config& c) {
              c.zero.offload_param.device = device;
              name_folders(c.zero);
            });
    }
    if (zero.stage == 3 && (zero.offload_optimizer.device != OffloadDevice::kNvme ||
                            zero.offload_param.device != OffloadDevice::kNvme))
      add("zero_optimization.offload_optimizer.device and offload_param.device: nvme (with "
          "nvme_path)",
          [](Config& c) {
            c.zero.offload_optimizer.device = OffloadDevice::kNvme;
            c.zero.offload_param.device = OffloadDevice::kNvme;
            name_folders(c.zero);
          });
  }

  void add_save_changes() {
    if (saves_in_background(config_))
      add("checkpoint.background: false", [](Config& c) { c.checkpoint.background = false; });
  }

  void add_batch_changes() {
    const int64_t sequences = config_.train_micro_batch_size_per_gpu;
    if (sequences >= 2 && sequences % 2 == 0)
      add(cat("train_micro_batch_size_per_gpu: ", sequences / 2,
              " (with gradient_accumulation_steps: ", config_.gradient_accumulation_steps * 2, ")"),
          [&](Config& c) {
            c.train_micro_batch_size_per_gpu = sequences / 2;
            c.gradient_accumulation_steps *= 2;
            mark_written(c, "gradient_accumulation_steps");
          });
    const int64_t tokens = config_.data.sequence_length;
    if (tokens >= 256)
      add(cat("data.sequence_length: ", tokens / 2),
          [&](Config& c) { c.data.sequence_length = tokens / 2; });
  }

  void add_precision_changes() {
    if (!config_.bf16.enabled && !config_.fp16.enabled)
      add("bf16.enabled: true", [](Config& c) { c.bf16.enabled = true; });
    if (config_.bf16.enabled && !config_.bf16.bf16_optimizer_states && config_.zero.stage > 0 &&
        !optimizer_traits(config_.optimizer.type).has_8bit_states)
      add("bf16.bf16_optimizer_states: true",
          [](Config& c) { c.bf16.bf16_optimizer_states = true; });
  }

  const Config& config_;
  std::vector<SettingChange> changes_;
};

/// Returns whether a change causes new objections. Such a change is not advised, because `ftrun
/// check` would refuse it.
bool brings_objections(const Config& changed, const std::set<std::string>& old_objections) {
  const std::set<std::string> new_objections = list_objections(changed);
  return !std::includes(old_objections.begin(), old_objections.end(), new_objections.begin(),
                        new_objections.end());
}

/// Keeps the change with the largest saving for each key; among equals, the first in `sorted`.
std::vector<MemorySaving> best_of_each_key(const std::vector<MemorySaving>& sorted) {
  std::set<std::string> seen;
  std::vector<MemorySaving> best;
  for (const MemorySaving& saving : sorted)
    if (seen.insert(saving.change.substr(0, saving.change.find(':'))).second)
      best.push_back(saving);
  return best;
}

}  // namespace

MemoryMeasure memory_measure_of(Tier tier, bool shares_memory) {
  if (shares_memory && tier != Tier::kDisk)
    return [](const MemoryPlan& plan) { return plan.main_memory_bytes(); };
  return [tier](const MemoryPlan& plan) { return plan.at(tier).total; };
}

MemoryMeasure memory_measure_of(Tier tier, const Config& config) {
  return memory_measure_of(tier, /*shares_memory=*/config.device != DeviceKind::kCuda);
}

std::vector<MemorySaving> list_memory_savings(const Config& config, const ModelConfig& model,
                                              int rank, const MemoryMeasure& measure) {
  const int64_t current_bytes = measure(plan_memory(plan_steps(config, model, rank)));
  std::vector<MemorySaving> savings;
  const std::set<std::string> old_objections = list_objections(config);
  for (const SettingChange& alternative : SettingChanges(config).release()) {
    if (brings_objections(alternative.config, old_objections)) continue;
    try {
      const int64_t changed_bytes =
          measure(plan_memory(plan_steps(alternative.config, model, rank)));
      if (changed_bytes < current_bytes)
        savings.push_back({alternative.change, current_bytes - changed_bytes});
    } catch (const Error&) {
      // A config that cannot be planned is not advised.
    }
  }
  std::stable_sort(savings.begin(), savings.end(),
                   [](const MemorySaving& a, const MemorySaving& b) { return a.bytes > b.bytes; });
  return best_of_each_key(savings);
}

std::string savings_remedy(const std::vector<MemorySaving>& savings, int64_t lacking_bytes,
                           size_t count) {
  constexpr int64_t kHelpfulShare = 10;
  const auto at_least = [&](int64_t bytes) {
    std::vector<std::string> parts;
    for (const MemorySaving& saving : savings)
      if (saving.bytes >= bytes && parts.size() < count)
        parts.push_back(cat(saving.change, " saves ", human_bytes(saving.bytes)));
    return parts;
  };
  const std::vector<std::string> enough = at_least(lacking_bytes);
  const std::vector<std::string> helpful =
      enough.empty() ? at_least(lacking_bytes / kHelpfulShare + 1) : enough;
  const std::string lacks = cat("each rank lacks ", human_bytes(lacking_bytes));
  if (helpful.empty())
    return cat("use more ranks, a smaller model, or a machine with more memory",
               lacking_bytes == 0
                   ? ""
                   : cat(" (", lacks, ", and no change of the config saves a tenth of that)"));
  return cat("make one or more of these changes (savings per rank): ", join(helpful, "; "),
             enough.empty() ? cat("; ", lacks, ", so none is enough alone") : "");
}

}  // namespace ftrun
