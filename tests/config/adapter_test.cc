#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "config/load.h"
#include "config/peft_config.h"
#include "config/resolve.h"
#include "config/serving_limits.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

AdapterConfig read_adapter(const std::string& text) {
  const LoadResult loaded = load_config_text("c.yaml", text);
  for (const Problem& problem : loaded.problems) UNSCOPED_INFO(to_text(problem));
  REQUIRE(loaded.ok());
  return resolve(loaded.written, {}).config.adapter;
}

std::string error_texts(const std::string& text) {
  std::string all;
  for (const Problem& problem : load_config_text("c.yaml", text).problems)
    if (problem.severity == Severity::kError) all += problem.message + "\n";
  return all;
}

TEST_CASE("an adapter section without a type is LoRA; type none, or no section, is no adapter") {
  CHECK(read_adapter("adapter: {r: 4}").type == AdapterType::kLora);
  CHECK(read_adapter("adapter: {}").type == AdapterType::kLora);
  CHECK(read_adapter("adapter: {peft_type: LORA}").type == AdapterType::kLora);
  CHECK(read_adapter("adapter: {type: none, r: 4}").type == AdapterType::kNone);
  CHECK(read_adapter("adapter: none").type == AdapterType::kNone);
  CHECK(config_of("", {"adapter.r=4", "adapter=none"}).adapter.type ==
        AdapterType::kNone);  // the later source has precedence
  CHECK(read_adapter("train: {steps: 1}").type == AdapterType::kNone);
}

TEST_CASE("settings that a server does not support are reported with a remedy") {
  CHECK(serving_limits(read_adapter("train: {steps: 1}")).empty());
  CHECK(serving_limits(read_adapter("adapter: {r: 16}")).empty());
  using Lines = std::vector<std::string>;
  CHECK(serving_limits(read_adapter("adapter: {r: 17}")) ==
        Lines{"vLLM serves this adapter with --max-lora-rank 32"});
  CHECK(serving_limits(read_adapter("adapter: {r: 320}")) ==
        Lines{"vLLM serves this adapter with --max-lora-rank 320"});
  const std::string merged =
      "; it serves the adapter merged into its base: ftrun convert RUN --merge --out FOLDER";
  CHECK(serving_limits(read_adapter("adapter: {r: 513}")) ==
        Lines{"vLLM serves adapters of a rank up to 512, this one has r 513" + merged});
  CHECK(
      serving_limits(read_adapter(
          "adapter: {r: 64, use_dora: true, modules_to_save: [embed_tokens], bias: all}")) ==
      Lines{"vLLM does not serve this adapter as it is (use_dora, modules_to_save, bias)" + merged,
            "llama.cpp does not serve this adapter as it is (use_dora, modules_to_save, bias)" +
                merged});
  CHECK(serving_limits(
            read_adapter("adapter: {rank_pattern: {q_proj: 4}, alpha_pattern: {q_proj: 4}}")) ==
        Lines{"vLLM does not serve this adapter as it is (rank_pattern, alpha_pattern)" + merged,
              "llama.cpp does not serve this adapter as it is (alpha_pattern)" + merged});
  CHECK(
      serving_limits(read_adapter("adapter: {use_rslora: true, rank_pattern: {q_proj: 4}}"),
                     {.type = QuantizationType::kNf4}) ==
      Lines{"vLLM does not serve this adapter as it is (rank_pattern)" + merged,
            "llama.cpp does not serve this adapter as it is (use_rslora with rank_pattern, a base "
            "that is quantized in training)" +
                merged});
}

TEST_CASE("modules are names or one expression, patterns keep the order they are written in") {
  const AdapterConfig names = read_adapter(
      "adapter: {target_modules: [q_proj, v_proj], exclude_modules: [k_proj], layers_to_transform: "
      "3}");
  CHECK(names.target_modules == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(names.exclude_modules == std::vector<std::string>{"k_proj"});
  CHECK(names.layers_to_transform == std::vector<int64_t>{3});
  const AdapterConfig text = read_adapter(
      "adapter: {target_modules: '.*q_proj', rank_pattern: {v_proj: 2, a: 7}, alpha_pattern: {b: "
      "1.5}}");
  CHECK(text.target_modules.empty());
  CHECK(text.target_pattern == ".*q_proj");
  CHECK(text.rank_pattern == std::vector<std::string>{"v_proj", "a"});
  CHECK(text.rank_pattern_ranks == std::vector<int64_t>{2, 7});
  CHECK(text.alpha_pattern_alphas == std::vector<double>{1.5});
  CHECK(read_adapter("adapter: {target_modules: all-linear}").target_modules ==
        std::vector<std::string>{"all-linear"});
}

TEST_CASE("a later config clears patterns, and two spellings of one are refused") {
  const LoadResult loaded = load_config_text("c.yaml", "adapter: {rank_pattern: {q_proj: 3}}",
                                             {"adapter.rank_pattern={}"});
  REQUIRE(loaded.ok());
  CHECK(with_defaults(loaded.written).adapter.rank_pattern.empty());
  CHECK(with_defaults(loaded.written).adapter.rank_pattern_ranks.empty());
  CHECK(error_texts("adapter: {rank_pattern: {q_proj: 3}, rank_pattern_ranks: [4]}")
            .find("set together with") != std::string::npos);
}

TEST_CASE("the two lists of a pattern have the same length") {
  const auto first = [](const std::string& text) {
    const ResolvedConfig r =
        resolve(load_config_text("c.yaml", "train_batch_size: 1\n" + text).written, {});
    return r.problems.empty() ? std::string() : to_text(r.problems.front());
  };
  CHECK(first("adapter: {rank_pattern: [a, b], rank_pattern_ranks: [4, 8]}\n").empty());
  CHECK(first("adapter: {rank_pattern: [a, b], rank_pattern_ranks: [4]}\n") ==
        "c.yaml:2:25: error: adapter.rank_pattern: 2 expressions, 1 values\n"
        "  remedy: write rank_pattern: {expression: value}");
  CHECK(first("adapter: {alpha_pattern_alphas: [1.5]}\n") ==
        "c.yaml:2:33: error: adapter.alpha_pattern: 0 expressions, 1 values\n"
        "  remedy: write alpha_pattern: {expression: value}");
  CHECK(first("adapter: {type: none, rank_pattern: [a]}\n").empty());
}

TEST_CASE("settings of other kinds of adapters are refused by name, unless they are switched off") {
  for (const char* key :
       {"lora_bias: true", "layer_replication: [[0, 2]]", "target_parameters: [w]",
        "eva_config: {rho: 2.0}", "alora_invocation_tokens: [1]"}) {
    INFO(key);
    const std::string name = split(key, ':')[0];
    CHECK(error_texts(cat("adapter: {", key, "}")).find(cat("adapter.", name, ": ")) == 0);
  }
  CHECK(error_texts("adapter: {fan_in_fan_out: true}") == "");
  CHECK(error_texts(
            "adapter: {lora_bias: false, eva_config: null, loftq_config: {}, layer_replication: "
            "[]}") == "");
  for (const char* begin : {"pissa", "pissa_niter_16", "olora", "loftq", "corda"})
    CHECK(error_texts(cat("adapter: {init_lora_weights: ", begin, "}"))
              .find(cat("adapter.init_lora_weights: ", begin,
                        ": not supported: it changes the base's weights")) == 0);
  CHECK(error_texts("adapter: {init_lora_weights: eva}").find("adapter.init_lora_weights") == 0);
  CHECK(error_texts("adapter: {peft_version: '1'}").find("unknown key") != std::string::npos);
}

TEST_CASE("lora_dropout of 1, which would drop everything, is refused") {
  CHECK(read_adapter("adapter: {lora_dropout: 0.999}").lora_dropout == 0.999);
  CHECK(error_texts("adapter: {lora_dropout: 1}").find("adapter.lora_dropout") == 0);
  CHECK(error_texts("adapter: {lora_dropout: 1.0}").find("a number from 0 to below 1") !=
        std::string::npos);
}

TEST_CASE(
    "PEFT's own file is taken in place of the section, with the folder from which to continue") {
  // PEFT 0.21.2 writes the file in this form, with every key, sorted.
  const testing::TemporaryFolder folder;
  folder.write("adapter_config.json", R"({
  "alora_invocation_tokens": null, "alpha_pattern": {"v_proj": 3}, "arrow_config": null,
  "auto_mapping": null,
  "base_model_name_or_path": "base", "bias": "lora_only", "corda_config": null,
  "ensure_weight_tying": false, "eva_config": null,
  "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
  "init_lora_weights": true, "kasa_config": null,
  "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
  "loftq_config": {}, "lora_alpha": 16,
  "lora_bias": false, "lora_dropout": 0.05, "lora_ga_config": null, "megatron_config": null,
  "megatron_core": "megatron.core",
  "modules_to_save": ["lm_head"], "monteclora_config": null, "peft_type": "LORA",
  "peft_version": "0.21.2",
  "qalora_group_size": 16, "r": 8, "rank_pattern": {}, "revision": null,
  "target_modules": ["v_proj", "q_proj"],
  "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null,
  "use_bdlora": null, "use_dora": false,
  "use_qalora": false, "use_rslora": true, "velora_config": null})");
  const AdapterConfig adapter = read_adapter(cat("adapter: ", folder.path()));
  CHECK(adapter.type == AdapterType::kLora);
  CHECK(adapter.path == folder.path());
  CHECK(adapter.r == 8);
  CHECK(adapter.lora_alpha == 16);
  CHECK(adapter.lora_dropout == 0.05);
  CHECK(adapter.bias == AdapterBias::kLoraOnly);
  CHECK(adapter.use_rslora);
  CHECK(adapter.modules_to_save == std::vector<std::string>{"lm_head"});
  CHECK(adapter.alpha_pattern == std::vector<std::string>{"v_proj"});
  const testing::TemporaryFolder foreign;
  foreign.write("adapter_config.json", R"({"r": 4, "path": "/etc", "target_pattern": "x"})");
  CHECK(error_texts(cat("adapter: ", foreign.path())) ==
        "adapter.path: not a key of PEFT's adapter_config.json\nadapter.target_pattern: not a key "
        "of PEFT's adapter_config.json\n");
  CHECK(error_texts("adapter: /not/there").find("neither in the working directory nor in this") !=
        std::string::npos);
}

TEST_CASE("a config written for PEFT reads back as the same adapter") {
  for (const char* text :
       {"adapter: {r: 16, lora_alpha: 32, target_modules: [q_proj, k_proj], exclude_modules: "
        "[v_proj]}",
        "adapter: {target_modules: '.*(q|v)_proj', exclude_modules: '.*0.*', lora_alpha: 2.5, "
        "bias: all}",
        "adapter: {target_modules: [up_proj], rank_pattern: {b: 2, a: 3}, alpha_pattern: {a: 1.5}, "
        "use_rslora: true, "
        "layers_to_transform: [0, 2], modules_to_save: [lm_head], init_lora_weights: gaussian}",
        "adapter: {target_modules: [up_proj], init_lora_weights: orthogonal}",
        "adapter: {target_modules: [up_proj], init_lora_weights: false, lora_dropout: 0.1, "
        "use_dora: true}"}) {
    INFO(text);
    AdapterConfig adapter = read_adapter(text);
    const testing::TemporaryFolder folder;
    folder.write("adapter_config.json", peft_config_text(adapter, {.name = {"base", ""}}));
    AdapterConfig again = read_adapter(cat("adapter: ", folder.path()));
    again.path = "";
    CHECK(again == adapter);
  }
  const std::string tied = peft_config_text(
      read_adapter("adapter: {modules_to_save: [embed_tokens]}"),
      {.name = {"base", ""}, .tied = true, .embedding = "embed_tokens", .head = "lm_head"});
  CHECK(tied.find("\"lm_head\"") != std::string::npos);
}

}  // namespace
}  // namespace ftrun
