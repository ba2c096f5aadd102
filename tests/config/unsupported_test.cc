#include "config/unsupported.h"

#include "config/schema_docs.h"
#include "helpers.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

Lines unsupported_features(const std::string& text, int64_t ranks = 1) {
  Lines out;
  const ResolvedConfig r =
      resolve(written_of("train_micro_batch_size_per_gpu: 1\n" + text), {.world_size = ranks});
  REQUIRE(problem_texts(r.problems) == Lines{});
  for (const UnsupportedRequest& gap : r.unsupported) out.push_back(to_text(gap));
  return out;
}

}  // namespace

TEST_CASE("the features that a data-parallel run in fp32 uses are supported") {
  REQUIRE(unsupported_features(R"(
gradient_accumulation_steps: 4
gradient_clipping: 1.0
steps_per_print: 10
wall_clock_breakdown: true
optimizer: {type: AdamW, params: {lr: 1e-4}}
scheduler: {type: WarmupCosineLR, params: {total_num_steps: 2000}}
csv_monitor: {enabled: true, output_path: logs}
zero_optimization: {stage: 0}
parallel: {data: 2}
prescale_gradients: true
checkpoint: {every: 10, keep_last: 3}
fp16: {enabled: false}
amp: {enabled: false}
autotuning: {enabled: false, fast: true}
)",
                               2) == Lines{});
  for (const char* type : {"Adam", "SGD"})
    REQUIRE(unsupported_features(std::string("optimizer: {type: ") + type + "}") == Lines{});
  for (const char* type : {"constant", "linear", "cosine"})
    REQUIRE(unsupported_features(std::string("scheduler: {type: ") + type + "}") == Lines{});
}

TEST_CASE("each feature that cannot run yet is named with key and position") {
  const auto one = [](const std::string& text, int64_t ranks = 1) {
    const Lines lines = unsupported_features(text, ranks);
    REQUIRE(lines.size() == 1);
    return lines.front();
  };
  const std::string not_yet = "not supported yet: ";
  REQUIRE(one("sequence_parallel_size: 2", 2) ==
          "c.yaml:2:25: not supported yet: context parallelism (parallel.context)");
  REQUIRE(one("parallel: {expert: 2}", 2) ==
          "c.yaml:2:20: not supported yet: expert parallelism (parallel.expert)");
  REQUIRE(one("optimizer: {type: lamb}") ==
          "c.yaml:2:19: not supported yet: the optimizer Lamb (optimizer.type)");
  REQUIRE(one("optimizer: {type: muon}") ==
          "c.yaml:2:19: not supported yet: the optimizer Muon (optimizer.type)");
  REQUIRE(one("optimizer: {type: RMSprop, params: {alpha: 0.9}}") ==
          "c.yaml:2:19: not supported yet: the class RMSprop of PyTorch (optimizer.type)");
  const auto disks = [](const std::string& parameters, const std::string& optimizer) {
    return "zero_optimization: {stage: 3, offload_optimizer: {device: nvme, nvme_path: " +
           optimizer + "},\n  offload_param: {device: nvme, nvme_path: " + parameters + "}}";
  };
  REQUIRE(one(disks("/a", "/b")) ==
          "c.yaml:3:44: not supported yet: parameters and optimizer state on two disks "
          "(zero_optimization.offload_param.nvme_path)");
  REQUIRE(one(disks("/a/b", "/a")).find("on two disks") != std::string::npos);
  for (const char* same : {"/a", "/a/", "/a/.", "/b/../a", "//a"})
    REQUIRE(unsupported_features(disks("/a", same)) == Lines{});
  REQUIRE(one("scheduler: {type: StepLR, params: {step_size: 3}}") ==
          "c.yaml:2:19: not supported yet: the class StepLR of PyTorch (scheduler.type)");
}

TEST_CASE("every memory and precision feature is supported, except a few that are named") {
  const auto features = [](const std::string& text, int64_t ranks = 1) {
    Lines out;
    for (const std::string& line : unsupported_features(text, ranks))
      out.push_back(line.substr(line.find(": not supported yet: ") + 21));
    return out;
  };
  for (const char* text :
       {"zero_optimization: {stage: 1}", "zero_optimization: {stage: 2}",
        "zero_optimization: {stage: 3, offload_optimizer: {device: nvme, nvme_path: /n, ratio: "
        "0.5}, offload_param: {device: cpu}}",
        // This config uses only one of the two.
        "zero_optimization: {stage: 3, offload_optimizer: {device: nvme, nvme_path: /n}, "
        "offload_param: {device: cpu, nvme_path: /m}}",
        "zero_optimization: {stage: 3, offload_optimizer: {device: cpu, nvme_path: /n}, "
        "offload_param: {device: nvme, nvme_path: /m}}",
        "zero_optimization: {stage: FULL_SHARD}\nparallel: {data_replicate: 2}",
        "zero_optimization: {stage: 3, mics_shard_size: 2}",
        "zero_optimization: {stage: 3, zero_hpz_partition_size: 2}",
        "zero_optimization: {reduce_scatter: false}\nelasticity: {enabled: false}",
        "fp16: {enabled: true}\ndata_types: {grad_accum_dtype: fp32}\ncommunication_data_type: "
        "fp16",
        "bf16: {enabled: true, bf16_master_weights_and_grads: true, bf16_optimizer_states: true}\n"
        "zero_optimization: {stage: 1}",
        "recompute: full",
        "recompute: {policy: selective, every: 2}\n"
        "activation_checkpointing: {cpu_checkpointing: true}",
        "communication_data_type: BF16", "gradient_predivide_factor: 4",
        "gradient_allreduce_op: sum"})
    REQUIRE(features(text, 4) == Lines{});
  for (const char* text : {"device: cpu", "device: auto", "bf16: {enabled: true}"})
    REQUIRE(features(text) == Lines{});
}

TEST_CASE("tensor parallelism is supported on CPUs, with every stage, tier and precision") {
  for (const char* text :
       {"parallel: {tensor: 2}", "parallel: {tensor: 4}", "parallel: {tensor: 2, sequence: false}",
        "parallel: {tensor: 2}\nzero_optimization: {stage: 1}\nbf16: {enabled: true}",
        "parallel: {tensor: 2}\nzero_optimization: {stage: 3, offload_optimizer: {device: cpu}}",
        "parallel: {tensor: 2}\nzero_optimization: {stage: 2}\nrecompute: full"})
    REQUIRE(unsupported_features(text, 4) == Lines{});
}

TEST_CASE(
    "every feature of CPUs is accepted on GPUs, and features that ran only on emulated GPUs are "
    "reported") {
  const auto emulated = [](const std::string& text, int64_t ranks = 1) {
    const ResolvedConfig r =
        resolve(written_of("train_micro_batch_size_per_gpu: 1\n" + text), {.world_size = ranks});
    REQUIRE(problem_texts(r.problems) == Lines{});
    REQUIRE(r.unsupported.empty());
    return features_only_emulated_on_gpus(r.config);
  };
  for (const char* text :
       {"bf16: {enabled: false}",
        "bf16: {enabled: true}\nzero_optimization: {stage: 2, offload_optimizer: {device: cpu, "
        "pin_memory: false}}",
        "comm: {backend: nccl}",
        "zero_optimization: {stage: 3, offload_optimizer: {device: nvme, nvme_path: /n, ratio: 1}, "
        "offload_param: {device: cpu}}",
        "bf16: {enabled: true}\ndata_types: {grad_accum_dtype: fp32}\ncommunication_data_type: "
        "bf16",
        "recompute: full\nactivation_checkpointing: {cpu_checkpointing: true}"}) {
    REQUIRE(emulated(cat("device: cuda\n", text)).empty());
    REQUIRE(emulated(cat("device: cuda\n", text), 4) == Lines{"several GPUs"});
  }
  const std::string all =
      "bf16: {enabled: true, bf16_master_weights_and_grads: true, bf16_optimizer_states: true}\n"
      "zero_optimization: {stage: 1}\nparallel: {tensor: 2, pipeline: "
      "2}\ngradient_accumulation_steps: 2\n"
      "adapter: {use_dora: true}";
  REQUIRE(emulated("device: cuda\n" + all, 8) ==
          Lines{"several GPUs", "tensor parallelism", "pipelines"});
  REQUIRE(emulated("device: cpu\n" + all, 8).empty());
  REQUIRE(emulated("device: cuda\nfp16: {enabled: true}").empty());
  REQUIRE(emulated("device: cuda\ncommunication_data_type: fp16", 2) ==
          Lines{"several GPUs", "gradients sent in fp16"});
}

TEST_CASE("the reference says which part of a key cannot run yet") {
  REQUIRE(unsupported_part("parallel.context") == "context parallelism");
  REQUIRE(unsupported_part("parallel.data") == "");
  REQUIRE(unsupported_part("export.dtype") == "");
  REQUIRE(unsupported_part("optimizer.type").find("Lamb, ") == 0);
  const std::string markdown = config_markdown();
  for (const char* row :
       {"| `pipeline` | whole number, ≥ 1, stages | 1 | yes; GPUs: emulated |",
        "| `context` | whole number, ≥ 1, ranks | 1 | not yet: context parallelism |",
        "| `use_node_local_storage` | true/false | false | not yet: checkpoints on "})
    REQUIRE(markdown.find(row) != std::string::npos);
}

TEST_CASE("features of DeepSpeed that ftrun does not have are refused where they are switched on") {
  REQUIRE(unsupported_features(R"(
autotuning: {enabled: true, stages: [1, 2]}
compression_training: {weight_quantization: {shared_parameters: {enabled: true}}}
data_efficiency: {enabled: false, data_sampling: {enabled: true}}
sparse_attention: {mode: fixed}
sparse_gradients: true
zero_optimization: {zero_quantized_weights: true, zenflow: {topk_ratio: 0.1}}
tensor_parallel: {autotp_size: 1}
)") == Lines{
           "c.yaml:7:1: not supported yet: sparse gradients of embeddings (sparse_gradients)",
           "c.yaml:3:1: not supported yet: DeepSpeed's autotuner (autotuning)",
           "c.yaml:4:1: not supported yet: quantization, pruning, layer reduction "
           "(compression_training)",
           "c.yaml:6:1: not supported yet: block-sparse attention (sparse_attention)",
           "c.yaml:8:21: not supported yet: ZeRO++ qwZ (zero_optimization.zero_quantized_weights)",
           "c.yaml:8:51: not supported yet: ZenFlow (zero_optimization.zenflow)"});
}

TEST_CASE("sections that DeepSpeed refuses without enabled are refused") {
  REQUIRE(problems_of("c.yaml", "curriculum_learning: {min_difficulty: 8}\n") ==
          Lines{"c.yaml:1:1: error: curriculum_learning: needs the key enabled\n"
                "  remedy: add \"enabled\": true or false"});
}

}  // namespace ftrun
