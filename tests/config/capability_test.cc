#include "config/capability.h"

#include "helpers.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

Lines missing(const std::string& text, int64_t ranks = 1, bool cuda = false) {
  Lines out;
  const Resolution r = resolve(config_of("train_micro_batch_size_per_gpu: 1\n" + text),
                               {.world_size = ranks, .cuda = cuda});
  REQUIRE(texts(r.problems) == Lines{});
  for (const NotYet& gap : r.not_yet) out.push_back(to_text(gap));
  return out;
}

}  // namespace

TEST_CASE("what a data-parallel run in fp32 uses is supported") {
  REQUIRE(missing(R"(
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
checkpoint: {every: 10, keep_last: 1}
fp16: {enabled: false}
amp: {enabled: false}
autotuning: {enabled: false, fast: true}
)",
                  2) == Lines{});
  for (const char* type : {"Adam", "SGD"})
    REQUIRE(missing(std::string("optimizer: {type: ") + type + "}") == Lines{});
  for (const char* type : {"constant", "linear", "cosine"})
    REQUIRE(missing(std::string("scheduler: {type: ") + type + "}") == Lines{});
  REQUIRE(missing("bf16: {enabled: true}", 1, true) == Lines{});
}

TEST_CASE("each feature that cannot run yet is named with key and place") {
  const auto one = [](const std::string& text, int64_t ranks = 1) {
    const Lines lines = missing(text, ranks);
    REQUIRE(lines.size() == 1);
    return lines.front();
  };
  const std::string not_yet = "not supported yet: ";
  REQUIRE(one("zero_optimization: {stage: 2}") ==
          "c.yaml:2:28: not supported yet: ZeRO stage 2 (zero_optimization.stage)");
  REQUIRE(one("bf16: {enabled: true}") ==
          "c.yaml:2:17: not supported yet: training in bf16 on the CPU (bf16.enabled)");
  REQUIRE(one("fp16: {enabled: true}") ==
          "c.yaml:2:17: not supported yet: training in fp16 (fp16.enabled)");
  REQUIRE(one("recompute: full") == "c.yaml:2:12: not supported yet: recompute full (recompute)");
  REQUIRE(one("parallel: {tensor: 2}", 2) ==
          "c.yaml:2:20: not supported yet: tensor parallelism (parallel.tensor)");
  REQUIRE(one("parallel: {pipeline: 2}", 2) ==
          "c.yaml:2:22: not supported yet: pipeline parallelism (parallel.pipeline)");
  REQUIRE(one("sequence_parallel_size: 2", 2) ==
          "c.yaml:2:25: not supported yet: context parallelism (parallel.context)");
  REQUIRE(one("parallel: {expert: 2}", 2) ==
          "c.yaml:2:20: not supported yet: expert parallelism (parallel.expert)");
  REQUIRE(one("parallel: {data_replicate: 2}", 2) ==
          "c.yaml:2:28: not supported yet: hybrid sharding (parallel.data_replicate)");
  REQUIRE(one("optimizer: {type: lamb}") ==
          "c.yaml:2:19: not supported yet: the optimizer Lamb (optimizer.type)");
  REQUIRE(one("optimizer: {type: RMSprop, params: {alpha: 0.9}}") ==
          "c.yaml:2:19: not supported yet: the class RMSprop of PyTorch (optimizer.type)");
  REQUIRE(one("scheduler: {type: StepLR, params: {step_size: 3}}") ==
          "c.yaml:2:19: not supported yet: the class StepLR of PyTorch (scheduler.type)");
  REQUIRE(one("communication_data_type: BF16") ==
          "c.yaml:2:26: not supported yet: another dtype for gradient reduction "
          "(communication_data_type)");
}

TEST_CASE("features of DeepSpeed that ftrun does not have are refused where they are switched on") {
  REQUIRE(missing(R"(
autotuning: {enabled: true, stages: [1, 2]}
compression_training: {weight_quantization: {shared_parameters: {enabled: true}}}
data_efficiency: {enabled: false, data_sampling: {enabled: true}}
sparse_attention: {mode: fixed}
sparse_gradients: true
zero_optimization: {zero_quantized_weights: true, zenflow: {topk_ratio: 0.1}}
tensor_parallel: {autotp_size: 1}
)") == Lines{
           "c.yaml:7:1: not supported yet: Sparse gradients of embeddings (sparse_gradients)",
           "c.yaml:3:1: not supported yet: DeepSpeed's autotuner (autotuning)",
           "c.yaml:4:1: not supported yet: Quantisation, pruning, layer reduction "
           "(compression_training)",
           "c.yaml:6:1: not supported yet: Block-sparse attention (sparse_attention)",
           "c.yaml:8:21: not supported yet: ZeRO++ qwZ (zero_optimization.zero_quantized_weights)",
           "c.yaml:8:51: not supported yet: ZenFlow (zero_optimization.zenflow)"});
}

TEST_CASE("sections that DeepSpeed refuses without enabled are refused") {
  REQUIRE(problems_of("c.yaml", "curriculum_learning: {min_difficulty: 8}\n") ==
          Lines{"c.yaml:1:1: error: curriculum_learning: needs the key enabled\n"
                "  remedy: add \"enabled\": true or false"});
}

}  // namespace ftrun
