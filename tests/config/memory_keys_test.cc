#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "config/effective_json.h"
#include "config/ranks.h"
#include "config/schema_docs.h"
#include "config/write.h"
#include "helpers.h"

#include <catch2/catch.hpp>

// Keys that decide memory and precision: how they are read, and every way in which they contradict.

namespace ftrun {
namespace {

const std::string kBatch = "train_micro_batch_size_per_gpu: 1\n";

ResolvedConfig resolved_keys(const std::string& text, int64_t ranks = 1) {
  return resolve(written_of(kBatch + text), {.world_size = ranks});
}

Lines memory_problems(const std::string& text, int64_t ranks = 1) {
  return problem_texts(resolved_keys(text, ranks).problems);
}

// The only problem of a text, without "c.yaml:".
std::string memory_problem(const std::string& text, int64_t ranks = 1) {
  const Lines lines = memory_problems(text, ranks);
  for (const std::string& line : lines) UNSCOPED_INFO(line);
  REQUIRE(lines.size() == 1);
  return lines.front().substr(lines.front().find(':') + 1);
}

int64_t stage_of(const std::string& word) {
  return config_of("zero_optimization: {stage: " + word + "}").zero.stage;
}

}  // namespace

TEST_CASE("FSDP's strategy names are ZeRO stages") {
  REQUIRE(stage_of("NO_SHARD") == 0);
  REQUIRE(stage_of("SHARD_GRAD_OP") == 2);
  REQUIRE(stage_of("FULL_SHARD") == 3);
  REQUIRE(stage_of("full_shard") == 3);
  REQUIRE(stage_of("\"1\"") == 1);
  REQUIRE(config_of("zero_optimization: {sharding_strategy: SHARD_GRAD_OP}").zero.stage == 2);
  REQUIRE(config_of("", {"zero_optimization.stage=FULL_SHARD"}).zero.stage == 3);
}

TEST_CASE("stage words that mean two keys or contradict each other are explained") {
  REQUIRE(
      problems_of("c.yaml", "zero_optimization: {stage: HYBRID_SHARD}") ==
      Lines{"c.yaml:1:28: error: zero_optimization.stage: \"HYBRID_SHARD\" corresponds to several "
            "keys in ftrun\n  remedy: write stage: 3 and parallel.data_replicate: the number of "
            "replicas (machines)"});
  REQUIRE(problems_of("c.yaml", "zero_optimization: {sharding_strategy: _HYBRID_SHARD_ZERO2}") ==
          Lines{"c.yaml:1:40: error: zero_optimization.sharding_strategy: \"_HYBRID_SHARD_ZERO2\" "
                "corresponds to several keys in ftrun\n  remedy: write stage: 2 and "
                "parallel.data_replicate: the "
                "number of replicas (machines)"});
  REQUIRE(
      problems_of("c.yaml", "zero_optimization: {stage: FULL_SHART}") ==
      Lines{"c.yaml:1:28: error: zero_optimization.stage: expected a whole number from 0 to 3 or "
            "one of NO_SHARD, SHARD_GRAD_OP, FULL_SHARD, found \"FULL_SHART\""});
  REQUIRE(
      problems_of("c.yaml", "zero_optimization: {stage: 2, sharding_strategy: FULL_SHARD}") ==
      Lines{"c.yaml:1:31: error: zero_optimization.sharding_strategy: set together with \"stage\" "
            "(line 1), which is the same key\n  remedy: keep one of the two"});
  REQUIRE(
      memory_problem("zero_optimization: {stage: NO_SHARD}\nparallel: {data_replicate: 2}", 2) ==
      "3:28: error: data_replicate 2 makes replicas of shards, and ZeRO stage 0 (NO_SHARD) "
      "shards nothing\n  remedy: set zero_optimization.stage: 1, 2 or 3, or remove "
      "data_replicate");
}

TEST_CASE("an absent reuse distance is 0, which is reported, and a written one is kept") {
  const auto line = [](const ResolvedConfig& r) {
    for (const ResolvedLine& l : r.lines)
      if (l.key == "zero_optimization.max_reuse_distance") return l.text;
    return std::string();
  };
  const std::string reason =
      "max_reuse_distance = 0 (nothing is kept from forward to backward; DeepSpeed's 1e9 keeps "
      "small models whole)";
  const ResolvedConfig absent = resolved_keys("zero_optimization: {stage: 3}");
  REQUIRE(absent.config.zero.max_reuse_distance == 0);
  REQUIRE(line(absent) == "default: zero_optimization." + reason);
  const ResolvedConfig automatic =
      resolved_keys("zero_optimization: {stage: 3, stage3_max_reuse_distance: auto}");
  REQUIRE(automatic.config.zero.max_reuse_distance == 0);
  REQUIRE(line(automatic) == "auto: zero_optimization." + reason);
  const ResolvedConfig written =
      resolved_keys("zero_optimization: {stage: 3, stage3_max_reuse_distance: 1e9}");
  REQUIRE(written.config.zero.max_reuse_distance == 1'000'000'000);
  REQUIRE(line(written).empty());
  REQUIRE(line(resolved_keys("zero_optimization: {stage: 2}")).empty());
}

TEST_CASE("the key recompute takes a word or a section") {
  const auto shown = [](const std::string& text, const Lines& overrides = {}) {
    const RecomputeConfig r = config_of(text, overrides).recompute;
    return cat(name_of(r.policy), " ", r.every);
  };
  REQUIRE(shown("") == "none 1");
  REQUIRE(shown("recompute: full") == "full 1");
  REQUIRE(shown("recompute: {policy: selective, every: 2}") == "selective 2");
  REQUIRE(shown("recompute: full", {"recompute.every=3"}) == "full 3");
  REQUIRE(shown("recompute: {policy: full, every: 2}", {"recompute=none"}) == "none 2");
  REQUIRE(shown("recompute: null") == "none 1");
  REQUIRE(problems_of("c.yaml", "recompute: true") ==
          Lines{"c.yaml:1:12: notice: recompute: true is read as full"});
  REQUIRE(shown("recompute: true") == "full 1");
  REQUIRE(shown("recompute: false") == "none 1");
  REQUIRE(
      problems_of("c.yaml", "recompute: ful") ==
      Lines{"c.yaml:1:12: error: recompute.policy: expected one of none, selective, full, found "
            "\"ful\" (did you mean \"full\"?)"});
  REQUIRE(
      problems_of("c.yaml", "recompute: [full]") ==
      Lines{"c.yaml:1:12: error: recompute: expected a section of keys, found a list of 1 entry"});
  REQUIRE(problems_of("c.yaml", "recompute: {every: 0}") ==
          Lines{"c.yaml:1:20: error: recompute.every: expected a whole number of at least 1, found "
                "0"});
  REQUIRE(memory_problem("recompute: {every: 2}") ==
          "2:20: error: recompute.every 2 selects layers, but recompute.policy is missing\n  "
          "remedy: write recompute.policy: full or selective");
  REQUIRE(memory_problem("recompute: {policy: none, every: 2}") ==
          "2:34: notice: recompute.every 2 has no effect with policy none");
}

TEST_CASE("activation_checkpointing says how to recompute, and does not switch recompute on") {
  const std::string notice =
      "notice: activation_checkpointing: sets how activations are recomputed but does not enable "
      "it (in DeepSpeed the model's code does)\n  remedy: write recompute: full to use it";
  REQUIRE(memory_problem("activation_checkpointing: {partition_activations: true}") ==
          "2:1: " + notice);
  REQUIRE(memory_problem("activation_checkpointing: {cpu_checkpointing: true}") ==
          "2:1: " + notice);
  const ResolvedConfig on =
      resolved_keys("recompute: full\nactivation_checkpointing: {cpu_checkpointing: true}");
  REQUIRE(problem_texts(on.problems) == Lines{});
  REQUIRE(on.config.activation_checkpointing.cpu_checkpointing);
  REQUIRE(memory_problems("activation_checkpointing: {cpu_checkpointing: false}") == Lines{});
  REQUIRE(problems_of("c.yaml",
                      "activation_checkpointing: {partition_activations: true, profile: true, "
                      "contiguous_memory_optimization: true, number_checkpoints: 4, "
                      "synchronize_checkpoint_boundary: true}") ==
          Lines{"c.yaml:1:28: notice: activation_checkpointing: accepted without effect in ftrun: "
                "partition_activations, profile, contiguous_memory_optimization, "
                "number_checkpoints, synchronize_checkpoint_boundary"});
}

TEST_CASE("the types of the keys of aio are checked, and null means the default") {
  const AioConfig aio = config_of(
                            "aio: {block_size: 8388608, queue_depth: 32, intra_op_parallelism: 4, "
                            "single_submit: true, overlap_events: false}")
                            .aio;
  REQUIRE(aio == AioConfig{8388608, 32, 4, true, false});
  REQUIRE(config_of("aio: {block_size: null, queue_depth: null}").aio == AioConfig{});
  REQUIRE(
      problems_of("c.yaml", "aio: {queue_depth: 0, thread_count: 2}") ==
      Lines{"c.yaml:1:20: error: aio.queue_depth: expected a whole number from 1 to 32768, found 0",
            "c.yaml:1:23: notice: aio: accepted without effect in ftrun: thread_count"});
  const std::string nvme =
      "zero_optimization: {stage: 1, offload_optimizer: {device: nvme, nvme_path: /n}}\n";
  REQUIRE(
      memory_problem(nvme + "aio: {block_size: 5000}") ==
      "3:19: error: aio.block_size 5000 is not a multiple of 4096, which direct disk access needs\n"
      "  remedy: use 8192");
  REQUIRE(memory_problems("aio: {block_size: 5000}") == Lines{});
}

TEST_CASE("offload without its stage or path is refused with a remedy") {
  REQUIRE(memory_problem("zero_optimization: {stage: 2, offload_param: {device: cpu}}") ==
          "2:55: error: zero_optimization.offload_param: device cpu needs stage 3, found stage 2\n"
          "  remedy: set zero_optimization.stage: 3, or remove offload_param");
  REQUIRE(
      memory_problem("zero_optimization: {offload_optimizer: {device: cpu}}") ==
      "2:49: error: zero_optimization.offload_optimizer: device cpu needs stage 1, 2 or 3, "
      "found stage 0\n  remedy: set zero_optimization.stage: 1 (on one rank it shards nothing), "
      "or remove offload_optimizer");
  REQUIRE(memory_problem("zero_optimization: {stage: 1, offload_optimizer: {device: nvme}}") ==
          "2:59: error: zero_optimization.offload_optimizer: device nvme needs nvme_path\n"
          "  remedy: name a folder on the fastest local disk, for example nvme_path: "
          "/mnt/nvme/ftrun");
  REQUIRE(problems_of("c.yaml", "zero_optimization: {offload_optimizer: {ratio: 1.5}}") ==
          Lines{"c.yaml:1:48: error: zero_optimization.offload_optimizer.ratio: expected a number "
                "from 0 to 1, found 1.5"});
  for (const int stage : {1, 2, 3})
    for (const char* device : {"cpu", "nvme, nvme_path: /n"})
      REQUIRE(memory_problems(cat("zero_optimization: {stage: ", stage,
                                  ", offload_optimizer: {device: ", device, "}}")) == Lines{});
  REQUIRE(memory_problems(
              "zero_optimization: {stage: 3, offload_param: {device: cpu, pin_memory: true}, "
              "offload_optimizer: {device: cpu, ratio: 0.5}}") == Lines{});
}

TEST_CASE("shard groups must divide the ranks they divide") {
  const auto replicas = [](const std::string& text, int64_t ranks) {
    const ResolvedConfig r = resolved_keys(text, ranks);
    REQUIRE(problem_texts(r.problems) == Lines{});
    return r.config.parallel.data_replicate;
  };
  const std::string hybrid = "zero_optimization: {stage: 3}\nparallel: {data_replicate: ";
  REQUIRE(replicas(hybrid + "2}", 4) == 2);
  REQUIRE(memory_problem(hybrid + "4}", 4) ==
          "3:28: notice: data_replicate 4 of 4 data-parallel ranks: each replica is one rank, so "
          "nothing is sharded");
  const auto mics = [](int ranks) {
    return cat("zero_optimization: {stage: 3, mics_shard_size: ", ranks, "}\n");
  };
  REQUIRE(replicas(mics(2), 8) == 4);
  REQUIRE(replicas(mics(8), 8) == 1);
  REQUIRE(replicas(mics(-1), 8) == 1);
  REQUIRE(resolved_keys(mics(2), 8).lines.back().text != "");
  REQUIRE(memory_problem(mics(3), 8) ==
          "2:48: error: 8 data-parallel ranks cannot be divided by mics_shard_size 3\n"
          "  remedy: use a divisor of 8");
  REQUIRE(memory_problem(mics(2) + "parallel: {data_replicate: 2}", 8) ==
          "2:48: error: mics_shard_size 2 makes 4 replicas of 8 data-parallel ranks, and "
          "parallel.data_replicate says 2\n  remedy: keep one of the two");
  REQUIRE(replicas(mics(2) + "parallel: {data_replicate: 4}", 8) == 4);
  REQUIRE(memory_problem("zero_optimization: {stage: 2, mics_shard_size: 2}", 4) ==
          "2:48: notice: zero_optimization.mics_shard_size: has an effect only at stage 3, but the "
          "stage is 2");
  const auto hpz = [](int ranks) {
    return cat("zero_optimization: {stage: 3, zero_hpz_partition_size: ", ranks, "}\n");
  };
  REQUIRE(memory_problems(hpz(2), 4) == Lines{});
  REQUIRE(memory_problems(hpz(0), 4) == Lines{});
  REQUIRE(memory_problems(hpz(1), 4) == Lines{});
  REQUIRE(memory_problem(hpz(4), 4) ==
          "2:56: notice: zero_hpz_partition_size 4 makes one node of all 4 data-parallel ranks of "
          "a replica: it changes nothing");
  REQUIRE(resolved_keys(hpz(4), 4).problems.front().key ==
          "zero_optimization.zero_hpz_partition_size");
  REQUIRE(
      memory_problems(
          "zero_optimization: {stage: 3, zero_hpz_partition_size: 4, offload_param: {device: cpu}}",
          4) == Lines{});
  REQUIRE(memory_problem(hpz(3), 4) ==
          "2:56: error: the 4 data-parallel ranks of a replica cannot be divided by "
          "zero_hpz_partition_size 3\n"
          "  remedy: use a divisor of 4");
  REQUIRE(memory_problem(hpz(4) + "parallel: {data_replicate: 2}", 4) ==
          "2:56: error: the 2 data-parallel ranks of a replica cannot be divided by "
          "zero_hpz_partition_size 4\n"
          "  remedy: use a divisor of 2");
  REQUIRE(memory_problem("zero_optimization: {stage: 2, zero_hpz_partition_size: 2}", 4) ==
          "2:56: notice: zero_optimization.zero_hpz_partition_size: has an effect only at stage 3, "
          "but the stage is 2");
}

TEST_CASE("a shard size of MiCS is read as parallel.data_replicate") {
  const ResolvedConfig r = resolved_keys("zero_optimization: {stage: 3, mics_shard_size: 2}", 8);
  const Lines lines = line_texts(r.lines);
  REQUIRE(std::set<std::string>(lines.begin(), lines.end())
              .count("default: parallel.data_replicate = 4 (data-parallel 8 / mics_shard_size 2)"));
}

TEST_CASE("dtypes follow the training dtype unless they are written") {
  const auto dtypes = [](const std::string& text) {
    const Config c = resolved_keys(text).config;
    return cat(name_of(training_dtype(c)), " ", name_of(gradient_dtype(c)), " ",
               name_of(communication_dtype(c)));
  };
  REQUIRE(dtypes("") == "fp32 fp32 fp32");
  REQUIRE(dtypes("bf16: {enabled: true}") == "bf16 bf16 bf16");
  REQUIRE(dtypes("fp16: {enabled: true}") == "fp16 fp16 fp16");
  REQUIRE(dtypes("bf16: {enabled: true}\ndata_types: {grad_accum_dtype: fp32}") ==
          "bf16 fp32 fp32");
  REQUIRE(dtypes("bf16: {enabled: true}\ncommunication_data_type: fp32") == "bf16 bf16 fp32");
  REQUIRE(dtypes("bf16: {enabled: true}\ndata_types: {grad_accum_dtype: fp32, param_dtype: bf16}\n"
                 "communication_data_type: bf16") == "bf16 fp32 bf16");
  REQUIRE(dtypes("communication_data_type: fp16") == "fp32 fp32 fp16");
}

TEST_CASE("dtypes that contradict each other are refused with position and remedy") {
  const std::string bf16 = "bf16: {enabled: true}\n", fp16 = "fp16: {enabled: true}\n";
  REQUIRE(memory_problem(bf16 + fp16) ==
          "3:17: error: fp16.enabled and bf16.enabled are both true (bf16.enabled at c.yaml:2:17)\n"
          "  remedy: switch one of them off; bf16 needs no loss scaling");
  REQUIRE(memory_problem(bf16 + "data_types: {grad_accum_dtype: fp16}") ==
          "3:32: error: data_types.grad_accum_dtype fp16 cannot hold the gradients of bf16 "
          "training\n  remedy: use bf16 or fp32");
  REQUIRE(memory_problem("data_types: {grad_accum_dtype: bf16}") ==
          "2:32: error: data_types.grad_accum_dtype bf16 cannot hold the gradients of fp32 "
          "training\n  remedy: use fp32, or remove it");
  REQUIRE(memory_problem(bf16 + "communication_data_type: fp16") ==
          "3:26: error: communication_data_type fp16 cannot carry the gradients of bf16 training: "
          "fp16 lacks the range of bf16, and bf16 lacks the precision of fp16\n  remedy: use bf16 "
          "or fp32");
  REQUIRE(memory_problem(fp16 + "data_types: {param_dtype: fp32}") ==
          "3:27: error: data_types.param_dtype fp32 contradicts training in fp16\n"
          "  remedy: remove it: master weights stay fp32 when fp16 is enabled");
  REQUIRE(memory_problem("prescale_gradients: true\ngradient_predivide_factor: 8") ==
          "3:28: notice: gradient_predivide_factor 8 has no effect with prescale_gradients "
          "(prescale_gradients at c.yaml:2:21)");
}

TEST_CASE(
    "keys of bf16 states have DeepSpeed's names, and master weights in bf16 need stage 1 or "
    "higher") {
  const std::string master = "bf16_master_weights_and_grads: true",
                    moments = "bf16_optimizer_states: true";
  const auto bf16 = [](const std::string& keys) { return "bf16: {enabled: true, " + keys + "}\n"; };
  const std::string stage1 = "zero_optimization: {stage: 1}\n";
  const ResolvedConfig both = resolved_keys(bf16(master + ", " + moments) + stage1);
  REQUIRE(problem_texts(both.problems) == Lines{});
  REQUIRE(both.config.bf16.bf16_master_weights_and_grads);
  REQUIRE(both.config.bf16.bf16_optimizer_states);
  REQUIRE(memory_problem(bf16(master)) ==
          "2:54: error: bf16.bf16_master_weights_and_grads needs ZeRO stage 1, 2 or 3, found stage "
          "0\n  remedy: set zero_optimization.stage: 1 (on one rank it shards nothing)");
  REQUIRE(memory_problem(bf16(moments)) ==
          "2:46: notice: bf16.bf16_optimizer_states: the moments are bf16, the master weights stay "
          "fp32; DeepSpeed allows this only together with bf16 master weights");
  REQUIRE(
      memory_problem(bf16(master) + stage1 + "data_types: {grad_accum_dtype: fp32}") ==
      "2:54: error: bf16.bf16_master_weights_and_grads contradicts data_types.grad_accum_dtype "
      "fp32 (data_types.grad_accum_dtype at c.yaml:4:32)\n  remedy: remove grad_accum_dtype, or "
      "keep the master weights fp32 and write bf16_optimizer_states alone");
  REQUIRE(
      memory_problem(bf16(master + ", " + moments) + stage1 + "optimizer: {type: AdamW8bit}") ==
      "2:83: error: bf16.bf16_optimizer_states cannot be combined with AdamW8bit, whose states are "
      "8-bit codes, and fp32 "
      "for small tensors (optimizer.type at c.yaml:4:19)\n  remedy: remove it");
  REQUIRE(memory_problems(bf16(master) + stage1 + "optimizer: {type: AdamW8bit}") == Lines{});
  REQUIRE(memory_problems("bf16: {enabled: false, " + master + "}") == Lines{});
}

TEST_CASE(
    "8-bit states have their defaults, and under names of Hugging Face its Trainer's embeddings") {
  const auto optimizer_of_text = [](const std::string& text) {
    return resolved_keys("optimizer: {type: " + text + "}").config.optimizer;
  };
  const OptimizerConfig own = optimizer_of_text("AdamW8bit");
  REQUIRE(own.lr == 1e-3);
  REQUIRE(own.weight_decay == 0);
  REQUIRE(own.min_8bit_size == 4096);
  REQUIRE_FALSE(own.fp32_embeddings);
  for (const char* name : {"adamw_8bit", "adamw_bnb_8bit", "ADAMW_BNB_8BIT"}) {
    CAPTURE(name);
    const OptimizerConfig theirs = optimizer_of_text(name);
    REQUIRE(theirs.type == own.type);
    REQUIRE(theirs.fp32_embeddings);
    REQUIRE(memory_problems(cat("optimizer: {type: ", name, "}")) == Lines{});
  }
  REQUIRE_FALSE(
      optimizer_of_text("adamw_8bit, params: {fp32_embeddings: false, lr: 0.1}").fp32_embeddings);
  REQUIRE(optimizer_of_text("adamw_8bit, params: {lr: 0.1}").fp32_embeddings);
  REQUIRE(problems_of("c.yaml", "optimizer: {type: paged_adamw_8bit}") ==
          Lines{"c.yaml:1:19: notice: optimizer.type: paged_adamw_8bit: its states are not paged; "
                "zero_optimization.offload_optimizer keeps them in main memory"});
  const auto is_told = [](const std::string& text, const std::string& wanted) {
    const Lines lines = problems_of("c.yaml", text);
    return lines.size() == 1 && lines.front().find(wanted) != std::string::npos;
  };
  REQUIRE(is_told("optimizer: {type: AdamW, params: {min_8bit_size: 1}}",
                  "error: optimizer.params.min_8bit_size: AdamW has no such parameter"));
  REQUIRE(is_told("optimizer: {type: Lion, params: {fp32_embeddings: true}}",
                  "error: optimizer.params.fp32_embeddings: Lion has no such parameter"));
  REQUIRE(is_told("optimizer: {type: AdamW8bit, params: {min_8bit_size: -1}}",
                  "expected a number of at least 0, found -1"));
}

TEST_CASE("all keys of loss scaling are read, and checked only if the loss scale is dynamic") {
  const Fp16Config f =
      config_of(
          "fp16: {enabled: true, loss_scale: 0, initial_scale_power: 32, loss_scale_window: 500, "
          "hysteresis: 3, consecutive_hysteresis: true, min_loss_scale: 0.5}")
          .fp16;
  REQUIRE(f == Fp16Config{true, false, 0, 32, 500, 3, true, 0.5});
  const auto fp16 = [](const std::string& keys) { return "fp16: {enabled: true, " + keys + "}"; };
  REQUIRE(memory_problem(fp16("hysteresis: 0")) ==
          "2:35: error: fp16.hysteresis: expected a whole number above 0, found 0: the scale would "
          "never be halved\n  remedy: write 1 to halve it at every overflow");
  REQUIRE(memory_problem(fp16("min_loss_scale: 0")) ==
          "2:39: error: fp16.min_loss_scale: expected a number above 0, found 0\n"
          "  remedy: write 1, or a fraction such as 0.5");
  REQUIRE(memory_problem(fp16("min_loss_scale: 8192, initial_scale_power: 12")) ==
          "2:39: notice: fp16.min_loss_scale 8192 is above the first scale, 2^12");
  REQUIRE(memory_problems(fp16("loss_scale: 128, hysteresis: 0, min_loss_scale: 0")) == Lines{});
  REQUIRE(memory_problems("fp16: {enabled: false, hysteresis: 0}") == Lines{});
}

TEST_CASE("memory keys survive writing and reading the effective config") {
  const std::string text = kBatch + R"(
bf16: {enabled: true, bf16_master_weights_and_grads: true, bf16_optimizer_states: true}
zero_optimization:
  stage: FULL_SHARD
  mics_shard_size: 2
  zero_hpz_partition_size: 2
  reduce_scatter: false
  offload_param: {device: nvme, nvme_path: /n}
  offload_optimizer: {device: cpu, ratio: 0.25}
recompute: {policy: selective, every: 2}
activation_checkpointing: {cpu_checkpointing: true}
aio: {block_size: 65536, single_submit: true}
elasticity: {enabled: true, max_train_batch_size: 24, micro_batch_sizes: [1, 3],
             ignore_non_elastic_batch_info: true}
)";
  const ResolveContext context{.world_size = 4};
  const ResolvedConfig first = resolve(written_of(text), context);
  REQUIRE(first.ok());
  const WrittenConfig again = written_of(effective_yaml(first.config));
  REQUIRE(with_defaults(again) == first.config);
  const ResolvedConfig second = resolve(again, context);
  REQUIRE(second.config == first.config);
  REQUIRE(second.ok());
  const auto json = nlohmann::json::parse(effective_json(first.config));
  REQUIRE(json.at("recompute").at("every") == 2);
  REQUIRE(json.at("zero_optimization").at("stage") == 3);
}

TEST_CASE("where elasticity is on, batch keys do not decide the number of ranks") {
  REQUIRE(count_ranks(written_of("{train_batch_size: 32, train_micro_batch_size_per_gpu: 4, "
                                 "gradient_accumulation_steps: 2, elasticity: {enabled: true}}"),
                      {}, {})
              .ranks == 1);
}

TEST_CASE("the JSON Schema for editors knows stage words and both forms of recompute") {
  const auto properties = nlohmann::json::parse(config_json_schema()).at("properties");
  const auto& stage = properties.at("zero_optimization").at("properties").at("stage").at("anyOf");
  REQUIRE(stage.at(1).at("pattern").get<std::string>().starts_with("^([Nn][Oo]_[Ss]"));
  REQUIRE(properties.at("recompute").at("pattern") == "^(none|selective|full|auto)$");
  REQUIRE(properties.at("recompute").at("properties").contains("every"));
}

}  // namespace ftrun
