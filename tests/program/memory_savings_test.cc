#include "program/memory_savings.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/load.h"
#include "config/resolve.h"
#include "models.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns a model of eight layers whose state is larger than their activations.
ModelConfig deep_model() {
  ModelConfig model = small_config(8, false);
  model.hidden = 256;
  model.feed_forward = 1024;
  return model;
}

const std::string kStage = "zero_optimization.stage=";
using Keys = std::vector<std::string>;

/// Two micro-batches of four rows: the gradients of the first one exist together with the
/// activations of the second.
const Keys kBatch{"train_micro_batch_size_per_gpu=4", "gradient_accumulation_steps=2"};

/// Returns the advice for four ranks and a config with these keys, in the form in which a user
/// writes it.
Keys advised_changes(Keys keys, const Keys& batch = kBatch) {
  const Keys base{"data.sequence_length=32",
                  // Parameters are neither prefetched nor gathered in buckets.
                  "zero_optimization.stage3_prefetch_bucket_size=0",
                  "zero_optimization.allgather_bucket_size=2",
                  "zero_optimization.reduce_bucket_size=2"};
  keys.insert(keys.begin(), base.begin(), base.end());
  keys.insert(keys.begin(), batch.begin(), batch.end());
  const LoadResult loaded = load_config_text("savings.yaml", "", keys);
  REQUIRE(loaded.ok());
  const ResolvedConfig resolution = resolve(loaded.written, {.world_size = 4});
  REQUIRE(resolution.ok());
  const auto total = [](const MemoryPlan& plan) { return plan.main_memory_bytes(); };
  Keys changes;
  for (const MemorySaving& saving : list_memory_savings(resolution.config, deep_model(), 0, total))
    changes.push_back(saving.change);
  return changes;
}

bool contains_change(const std::vector<std::string>& changes, const std::string& beginning) {
  for (const std::string& change : changes) UNSCOPED_INFO(change);
  return std::any_of(changes.begin(), changes.end(),
                     [&](const std::string& change) { return change.starts_with(beginning); });
}

TEST_CASE("the stage that saves most is advised if nothing conflicts with it") {
  REQUIRE(contains_change(advised_changes({}), "zero_optimization.stage: 3"));
  REQUIRE(contains_change(advised_changes({kStage + "1"}), "zero_optimization.stage: 3"));
}

TEST_CASE("a stage that contradicts how gradients are reduced is not advised") {
  const auto prescaled = advised_changes({"prescale_gradients=true"});
  REQUIRE(contains_change(prescaled, "zero_optimization.stage: 1"));
  REQUIRE_FALSE(contains_change(prescaled, "zero_optimization.stage: 3"));
  REQUIRE(contains_change(prescaled, "recompute.policy: full"));
  const auto predivided = advised_changes({kStage + "1", "gradient_predivide_factor=2"});
  REQUIRE_FALSE(contains_change(predivided, "zero_optimization.stage"));
  const auto sum = advised_changes({kStage + "1", "gradient_allreduce_op=sum"});
  REQUIRE(contains_change(sum, "zero_optimization.stage: 2"));
}

TEST_CASE("a stage that makes another key take effect is advised only where that fits the ranks") {
  const auto stage2 = [](int64_t mics) {
    return advised_changes({kStage + "2", cat("zero_optimization.mics_shard_size=", mics)});
  };
  REQUIRE(contains_change(stage2(-1), "zero_optimization.stage: 3"));
  REQUIRE_FALSE(contains_change(stage2(3), "zero_optimization.stage"));
}

TEST_CASE("advice never removes replicas that follow from mics_shard_size") {
  REQUIRE_FALSE(
      contains_change(advised_changes({kStage + "3", "zero_optimization.mics_shard_size=2"}),
                      "parallel.data_replicate"));
  REQUIRE(contains_change(advised_changes({kStage + "3", "parallel.data_replicate=2"}),
                          "parallel.data_replicate: 1"));
}

TEST_CASE("sharding the small tensors that stay whole at stage 3 is advised") {
  const std::string key = "zero_optimization.stage3_param_persistence_threshold";
  const auto stage3 = [&](int64_t threshold) {
    return advised_changes({kStage + "3", cat(key, "=", threshold)});
  };
  REQUIRE(contains_change(stage3(1 << 30), key + ": 0"));
  REQUIRE_FALSE(contains_change(stage3(0), key));
  REQUIRE_FALSE(contains_change(advised_changes({kStage + "2"}), key));
}

TEST_CASE("a smaller micro-batch is not advised where elasticity chooses it") {
  const auto elastic = advised_changes(
      {"elasticity={enabled: true, version: 0.1, max_train_batch_size: 64, micro_batch_sizes: [4], "
       "min_gpus: 1, max_gpus: 8}"},
      {});
  REQUIRE_FALSE(contains_change(elastic, "train_micro_batch_size_per_gpu"));
  REQUIRE(contains_change(advised_changes({}), "train_micro_batch_size_per_gpu: 2"));
}

TEST_CASE("bf16 is advised unless the config sets a dtype of parameters") {
  REQUIRE(contains_change(advised_changes({kStage + "1"}), "bf16.enabled: true"));
  REQUIRE_FALSE(contains_change(advised_changes({"data_types.param_dtype=fp32"}), "bf16.enabled"));
}

TEST_CASE(
    "offloading to disk is advised only on the folder that the config names, and on no second "
    "one") {
  const auto on_disk = [](const std::string& parameters, const std::string& optimizer) {
    return advised_changes(
        {kStage + "3",
         cat("zero_optimization.offload_param={device: nvme, nvme_path: ", parameters, "}"),
         cat("zero_optimization.offload_optimizer.nvme_path='", optimizer, "'")});
  };
  const std::string disk = "zero_optimization.offload_optimizer.device: nvme (with nvme_path)";
  REQUIRE(contains_change(on_disk("/a", ""), disk));
  REQUIRE(contains_change(on_disk("/a", "/a"), disk));
  REQUIRE_FALSE(contains_change(on_disk("/a", "/b"), disk));
}

TEST_CASE("a remedy names the changes that save enough memory") {
  const std::vector<MemorySaving> savings{
      {"a: 1", 300 << 20}, {"b: 1", 270 << 20}, {"c: 1", 100 << 20}, {"d: 1", 64 << 10}};
  const std::string all =
      "make one or more of these changes (savings per rank): a: 1 saves 300.00 MiB; b: 1 saves "
      "270.00 MiB";
  REQUIRE(savings_remedy(savings) == all + "; c: 1 saves 100.00 MiB");
  REQUIRE(savings_remedy(savings, 267 << 20) == all);
  REQUIRE(savings_remedy(savings, 1) == all + "; c: 1 saves 100.00 MiB");
}

TEST_CASE("if no change is enough, a remedy names those that save a tenth of the missing memory") {
  const std::vector<MemorySaving> savings{
      {"a: 1", 100 << 20}, {"b: 1", 30 << 20}, {"c: 1", 64 << 10}};
  REQUIRE(savings_remedy(savings, 267 << 20) ==
          "make one or more of these changes (savings per rank): a: 1 saves 100.00 MiB; b: 1 saves "
          "30.00 MiB; each rank lacks 267.00 MiB, so none is enough alone");
  REQUIRE(savings_remedy({{"c: 1", 64 << 10}}, 267 << 20) ==
          "use more ranks, a smaller model, or a machine with more memory (each rank lacks 267.00 "
          "MiB, and no change of the config saves a tenth of that)");
  REQUIRE(savings_remedy({}) == "use more ranks, a smaller model, or a machine with more memory");
}

}  // namespace
}  // namespace ftrun
