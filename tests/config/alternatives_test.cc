#include "base/error.h"
#include "config/write.h"
#include "helpers.h"

#include <catch2/catch.hpp>

// These tests set two keys that contradict each other: the later one replaces the other.

namespace ftrun {
namespace {

const std::string kGivenBatch = "train_micro_batch_size_per_gpu: 1\n";

/// Returns the messages about a file with overrides, without the file's name; the config must
/// resolve.
Lines messages_of(const std::string& text, const Lines& overrides, Config* resolved = nullptr) {
  const LoadResult loaded = load_config_text("c.yaml", kGivenBatch + text, overrides);
  const ResolvedConfig resolution = resolve(loaded.written, {.world_size = 4});
  CHECK(problem_texts(resolution.problems) == Lines{});
  if (resolved != nullptr) *resolved = resolution.config;
  return problem_texts(loaded.problems);
}

}  // namespace

TEST_CASE("steps that are set later replace a file's epochs, and the other way round") {
  Config config;
  CHECK(messages_of("train: {epochs: 2}", {"train.steps=4"}, &config) ==
        Lines{"--set train.steps=4: notice: train.steps 4 replaces train.epochs 2 (c.yaml:2:17)"});
  CHECK(config.train.steps == 4);
  CHECK(config.train.epochs == 0);
  CHECK(
      messages_of("train: {steps: 9}", {"train.epochs=0.5"}, &config) ==
      Lines{
          "--set train.epochs=0.5: notice: train.epochs 0.5 replaces train.steps 9 (c.yaml:2:16)"});
  CHECK(config.train.epochs == 0.5);
  CHECK(messages_of("train: {epochs: 2}", {"train.steps=4", "train.epochs=3"}, &config).size() ==
        2);
  CHECK(config.train.epochs == 3);
  CHECK(config.train.steps == 0);
  CHECK(messages_of("train: {epochs: null}", {"train.steps=4"}).empty());
}

TEST_CASE("rates, decay and warm-up have two names, and the later one is taken") {
  Config config;
  CHECK(messages_of("optimizer: {type: AdamW, params: {lr: 0.5, weight_decay: 0.25}}",
                    {"train.learning_rate=0.125", "train.weight_decay=0"}, &config) ==
        Lines{"--set train.learning_rate=0.125: notice: train.learning_rate 0.125 "
              "replaces optimizer.params.lr 0.5 (c.yaml:2:39)",
              "--set train.weight_decay=0: notice: train.weight_decay 0 replaces "
              "optimizer.params.weight_decay 0.25 (c.yaml:2:58)"});
  CHECK(config.optimizer.lr == 0.125);
  CHECK(config.optimizer.weight_decay == 0);
  CHECK(messages_of("train: {learning_rate: 0.5}", {"optimizer.params.lr=0.25"}, &config).size() ==
        1);
  CHECK(config.optimizer.lr == 0.25);
  CHECK(messages_of("train: {learning_rate: 0.5}", {"optimizer.params.lr=0.5"}).empty());
  CHECK(messages_of("scheduler: {type: WarmupLR, params: {warmup_num_steps: 7}}",
                    {"train.warmup_steps=0"}, &config)
            .size() == 1);
  CHECK(config.scheduler.warmup_num_steps == 1);  // the minimum that DeepSpeed's types accept
  CHECK(messages_of("train: {warmup_steps: 7}", {"scheduler.params.warmup_num_steps=3"}, &config)
            .size() == 1);
  CHECK(config.scheduler.warmup_num_steps == 3);
}

TEST_CASE("precisions and shard groups that exclude each other follow the later key") {
  Config config;
  CHECK(messages_of("fp16: {enabled: true}", {"bf16.enabled=true"}, &config) ==
        Lines{"--set bf16.enabled=true: notice: bf16.enabled true replaces fp16.enabled true "
              "(c.yaml:2:17)"});
  CHECK(config.bf16.enabled);
  CHECK_FALSE(config.fp16.enabled);
  CHECK(messages_of("fp16: {enabled: true}", {"bf16.enabled=false"}, &config).empty());
  CHECK(config.fp16.enabled);

  const std::string mics = "zero_optimization: {stage: 3, mics_shard_size: 2}";
  CHECK(messages_of(mics, {"parallel.data_replicate=1"}, &config).size() == 1);
  CHECK(config.parallel.data_replicate == 1);
  const std::string hybrid = "zero_optimization: {stage: 3}\nparallel: {data_replicate: 4}";
  Lines notices = messages_of(hybrid, {"zero_optimization.mics_shard_size=2"});
  REQUIRE(notices.size() == 1);
  CHECK(notices[0].ends_with("replaces parallel.data_replicate 4 (c.yaml:3:28)"));
  CHECK(config_of(kGivenBatch + hybrid, {"zero_optimization.mics_shard_size=-1"})
            .parallel.data_replicate == 4);
}

TEST_CASE("the later one of context parallelism's two names counts, unless it is 1") {
  Config config = config_of("sequence_parallel_size: 2", {"parallel.context=4"});
  CHECK(config.sequence_parallel_size == 1);
  CHECK(config.parallel.context == 4);
  config = config_of("parallel: {context: 2}", {"sequence_parallel_size=4"});
  CHECK(config.parallel.context == 1);
  config = config_of("parallel: {context: 2}", {"sequence_parallel_size=1"});
  CHECK(config.parallel.context == 2);
}

TEST_CASE("the later one of tensor parallelism's two names counts, unless it is absent") {
  Config config;
  CHECK(messages_of("tensor_parallel: {autotp_size: 2}", {"parallel.tensor=4"}, &config) ==
        Lines{"--set parallel.tensor=4: notice: parallel.tensor 4 replaces "
              "tensor_parallel.autotp_size 2 (c.yaml:2:32)"});
  CHECK(config.tensor_parallel.autotp_size == 0);
  CHECK(config.parallel.tensor == 4);
  CHECK(config.parallel.data == 1);
  config = config_of("parallel: {tensor: 2}", {"tensor_parallel.autotp_size=4"});
  CHECK(config.tensor_parallel.autotp_size == 4);
  CHECK(config.parallel.tensor == 1);
  for (const char* off : {"0", "1"}) {
    config = config_of("parallel: {tensor: 2}", {cat("tensor_parallel.autotp_size=", off)});
    CHECK(config.parallel.tensor == 2);
  }
  config = config_of("tensor_parallel: {autotp_size: 2}", {"parallel.tensor=2"});
  CHECK(config.tensor_parallel.autotp_size == 2);
  CHECK(config.parallel.tensor == 2);
}

TEST_CASE("a config that a run has written can be set in either name") {
  const Config first =
      resolve(written_of(kGivenBatch + "optimizer: {type: AdamW, params: {lr: 0.5}}"),
              {.world_size = 1, .for_training = true})
          .config;
  const WrittenConfig again =
      written_of(effective_yaml(first), {"train.learning_rate=0.25", "train.steps=3"});
  const ResolvedConfig resolution = resolve(again, {});
  CHECK(problem_texts(resolution.problems) == Lines{});
  CHECK(resolution.config.optimizer.lr == 0.25);
  CHECK(resolution.config.train.steps == 3);
}

TEST_CASE("max_grad_norm is read as gradient_clipping wherever other programs have it") {
  CHECK(messages_of("max_grad_norm: 0.5", {}) ==
        Lines{"c.yaml:2:1: notice: max_grad_norm: read as gradient_clipping: 0.5"});
  CHECK(config_of("max_grad_norm: 0.5").gradient_clipping == 0.5);
  CHECK(config_of("gradient_clipping: 2", {"max_grad_norm=0.5"}).gradient_clipping == 0.5);
  CHECK(config_of("optimizer: {params: {max_grad_norm: 2}}", {"gradient_clipping=0.5"})
            .gradient_clipping == 0.5);
  CHECK(config_of("", {"optimizer.params.max_grad_norm=0.5"}).gradient_clipping == 0.5);
  CHECK(problems_of("c.yaml", "gradient_clipping: 1\nmax_grad_norm: 2") ==
        Lines{"c.yaml:2:1: error: max_grad_norm: 2 contradicts gradient_clipping: 1 (line 1)\n"
              "  remedy: keep gradient_clipping"});
}

TEST_CASE("a schedule under PyTorch's name is an error that shows ftrun's name") {
  CHECK(problems_of("c.yaml", "lr_scheduler: {type: WarmupLR, params: {}}") ==
        Lines{"c.yaml:1:1: error: lr_scheduler: unknown key (did you mean \"scheduler\"?)"});
}

TEST_CASE("a key without effect says why") {
  const std::string nvme =
      "zero_optimization: {stage: 1, offload_optimizer: {device: nvme, nvme_path: /n, "
      "pipeline_read: true, buffer_count: 8}, load_from_fp32_weights: false}";
  CHECK(
      messages_of(nvme, {}) ==
      Lines{"c.yaml:2:80: notice: zero_optimization.offload_optimizer: accepted without effect in "
            "ftrun: pipeline_read (always done), buffer_count (the state is processed in "
            "intervals through two buffers, whatever the value)",
            "c.yaml:2:119: notice: zero_optimization: accepted without effect in ftrun: "
            "load_from_fp32_weights (checkpoints contain the optimizer's own weights, and a "
            "resumed run loads those)"});
}

}  // namespace ftrun
