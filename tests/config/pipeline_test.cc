#include "axes/pipeline/keys.h"

#include <algorithm>

#include "base/error.h"
#include "config/ranks.h"
#include "config/unsupported.h"
#include "config/write.h"
#include "helpers.h"

#include <catch2/catch.hpp>

// These tests check pipelines in a config: the two names of the key, the ranks they need,
// schedules, and the number of chunks per stage.

namespace ftrun {
namespace {

const std::string kEightMicroBatches =
    "train_micro_batch_size_per_gpu: 1\ngradient_accumulation_steps: 8\n";

ResolvedConfig resolved_pipeline(const std::string& text, int64_t ranks) {
  return resolve(written_of(kEightMicroBatches + text), {.world_size = ranks});
}

/// Returns the problems of a text that follows the batch lines.
Lines pipeline_problems(const std::string& text, int64_t ranks) {
  return problem_texts(resolved_pipeline(text, ranks).problems);
}

std::string pipeline_problem(const std::string& text, int64_t ranks) {
  const Lines lines = pipeline_problems(text, ranks);
  for (const std::string& line : lines) UNSCOPED_INFO(line);
  REQUIRE(lines.size() == 1);
  return lines.front();
}

}  // namespace

TEST_CASE("the ranks are data-parallel ranks × tensor × pipeline, and batches count the first") {
  const ResolvedConfig r = resolved_pipeline("parallel: {tensor: 2, pipeline: 2}\n", 12);
  REQUIRE(problem_texts(r.problems) == Lines{});
  REQUIRE(r.unsupported.empty());
  REQUIRE(mesh_text(r.config.parallel) == "data 3 × tensor 2 × pipeline 2");
  REQUIRE(r.config.train_batch_size == 24);
  REQUIRE(count_ranks(written_of(kEightMicroBatches + "parallel: {data: 2, pipeline: 4}\n"), {}, {})
              .ranks == 8);
  REQUIRE(
      count_ranks(written_of(kEightMicroBatches + "train_batch_size: 16\npipeline: {stages: 4}\n"),
                  {}, {})
          .rule == "train_batch_size 16 / (micro 1 × accumulation 8) × pipeline 4");
}

TEST_CASE("pipeline.stages is parallel.pipeline, and both may be written when they agree") {
  REQUIRE(resolved_pipeline("pipeline: {stages: 2}\n", 4).config.parallel.pipeline == 2);
  REQUIRE(pipeline_problems("pipeline: {stages: 2}\nparallel: {pipeline: 2}\n", 4) == Lines{});
  REQUIRE(pipeline_problem("pipeline: {stages: 2}\nparallel: {pipeline: 4}\n", 4) ==
          "c.yaml:3:20: error: pipeline.stages 2 contradicts parallel.pipeline 4\n"
          "  remedy: keep one of the two");
  REQUIRE(pipeline_problem("pipeline: {stages: 2}\n", 3) ==
          "c.yaml:3:20: error: 3 ranks cannot be divided by pipeline 2\n"
          "  remedy: start 2 or 4 ranks");
  for (const char* off : {"0", "1", "auto"}) {
    const ResolvedConfig r =
        resolved_pipeline(cat("pipeline: {stages: ", off, "}\nparallel: {pipeline: 2}\n"), 2);
    REQUIRE(problem_texts(r.problems) == Lines{});
    REQUIRE(r.config.parallel.pipeline == 2);
  }
  const WrittenConfig over =
      written_of(kEightMicroBatches + "pipeline: {stages: 2}\n", {"parallel.pipeline=4"});
  REQUIRE(resolve(over, {.world_size = 4}).config.parallel.pipeline == 4);
}

TEST_CASE("a schedule decides the number of chunks of a stage unless the config sets it") {
  const auto chunks = [](const std::string& keys) {
    const ResolvedConfig r = resolved_pipeline("parallel: {pipeline: 2, " + keys + "}\n", 2);
    REQUIRE(problem_texts(r.problems) == Lines{});
    return r.config.parallel.virtual_stages;
  };
  REQUIRE(resolved_pipeline("parallel: {pipeline: 2}\n", 2).config.parallel.schedule ==
          PipelineSchedule::k1F1B);
  REQUIRE(chunks("schedule: 1f1b") == 1);
  REQUIRE(chunks("schedule: gpipe") == 1);
  REQUIRE(chunks("schedule: zb-h1") == 1);
  REQUIRE(chunks("schedule: zbv") == 2);
  REQUIRE(chunks("schedule: zbv, virtual_stages: 2") == 2);
  REQUIRE(chunks("schedule: interleaved") == 2);
  REQUIRE(chunks("schedule: interleaved, virtual_stages: 3") == 3);
  const Lines lines = line_texts(
      resolved_pipeline("parallel: {pipeline: 2, schedule: interleaved}\n", 2).lines);
  REQUIRE(std::count(lines.begin(), lines.end(),
                     "default: parallel.virtual_stages = 2 (schedule interleaved)") == 1);
  REQUIRE(pipeline_problem("parallel: {pipeline: 2, virtual_stages: 2}\n", 2) ==
          "c.yaml:3:41: error: parallel.virtual_stages 2 cannot be used with schedule 1f1b, which "
          "has 1 model chunk per stage\n"
          "  remedy: remove it, or write parallel.schedule: interleaved");
  REQUIRE(
      pipeline_problem("parallel: {pipeline: 2, schedule: zbv, virtual_stages: 3}\n", 2) ==
      "c.yaml:3:56: error: parallel.virtual_stages 3 cannot be used with schedule zbv, which has 2 "
      "model chunks per stage\n"
      "  remedy: remove it, or write parallel.schedule: interleaved");
  REQUIRE(
      pipeline_problem("parallel: {pipeline: 2, schedule: interleaved, virtual_stages: 1}\n", 2) ==
      "c.yaml:3:64: error: parallel.virtual_stages is 1, but schedule interleaved needs at "
      "least 2 model chunks per stage\n"
      "  remedy: write 2 or more, or parallel.schedule: 1f1b");
  const Lines typo = problems_of("c.yaml", "parallel: {schedule: zb-v}\n");
  REQUIRE(typo.size() == 1);
  REQUIRE(typo.front() ==
          "c.yaml:1:22: error: parallel.schedule: expected one of gpipe, 1f1b, interleaved, zb-h1, "
          "zbv, found \"zb-v\" (did you mean \"zbv\"?)");
}

TEST_CASE("interleaved schedules need micro-batches that fill whole rounds") {
  REQUIRE(pipeline_problems("parallel: {pipeline: 4, schedule: interleaved}\n", 4) == Lines{});
  REQUIRE(pipeline_problem("parallel: {pipeline: 3, schedule: interleaved}\n", 3) ==
          "c.yaml:2:30: error: schedule interleaved runs micro-batches in rounds of one per stage: "
          "gradient_accumulation_steps 8 cannot be divided by pipeline 3\n"
          "  remedy: use 6 or 9");
  REQUIRE(pipeline_problem("parallel: {pipeline: 9, schedule: interleaved}\n", 9)
              .ends_with("  remedy: use 9 or a multiple of it"));
  REQUIRE(pipeline_problems("parallel: {pipeline: 3}\n", 3) == Lines{});
}

TEST_CASE("pipeline_layers has one number for each chunk") {
  const auto with = [](const std::string& keys) {
    return "parallel: {pipeline: 2, " + keys + "}\n";
  };
  REQUIRE(pipeline_problems(with("pipeline_layers: [8, 7]"), 2) == Lines{});
  REQUIRE(pipeline_problems(with("pipeline_layers: [0, 0]"), 2) == Lines{});
  REQUIRE(resolved_pipeline(with("pipeline_layers: [8, 7]"), 2).config.parallel.pipeline_layers ==
          std::vector<int64_t>{8, 7});
  REQUIRE(pipeline_problem(with("pipeline_layers: [15]"), 2) ==
          "c.yaml:3:42: error: parallel.pipeline_layers has 1 number for 2 chunks (pipeline 2)\n"
          "  remedy: write the number of decoder layers of each chunk");
  REQUIRE(pipeline_problem(with("schedule: zbv, pipeline_layers: [8, 7]"), 2) ==
          "c.yaml:3:57: error: parallel.pipeline_layers has 2 numbers for 4 chunks (pipeline 2 × "
          "virtual_stages 2)\n  remedy: write the number of decoder layers of each chunk");
  REQUIRE(pipeline_problem(with("schedule: zbv, pipeline_layers: [4, 0, 4, 0]"), 2) ==
          "c.yaml:3:57: error: parallel.pipeline_layers: chunk 1 has no decoder layer\n"
          "  remedy: give every chunk at least one; only the first and the last may have 0");
  REQUIRE(
      pipeline_problem(with("pipeline_layers: [8, 7]") + "pipeline: {partition: uniform}\n", 2) ==
      "c.yaml:3:42: error: parallel.pipeline_layers and pipeline.partition uniform both say where "
      "the model is cut\n  remedy: keep one of the two");
}

TEST_CASE("pipeline.partition says how a model is cut") {
  REQUIRE(parse_pipeline_balance("best") == PipelineBalance::kCost);
  REQUIRE(parse_pipeline_balance("Parameters") == PipelineBalance::kParameters);
  REQUIRE(parse_pipeline_balance("uniform") == PipelineBalance::kLayers);
  for (const char* layers : {"type:transformer", "type:LlamaDecoderLayer", "type:decoder.*layer",
                             "type:(Qwen2|Mistral)Decoder", "type:ParallelTransformerLayerPipe",
                             "type:Gemma2DecoderLayer", "type:GPT2Block"})
    REQUIRE(parse_pipeline_balance(layers) == PipelineBalance::kBlocks);
  for (const char* other : {"type:embedding", "type:(", "type", "profile", ""})
    REQUIRE(parse_pipeline_balance(other) == std::nullopt);
  REQUIRE(pipeline_problems("parallel: {pipeline: 2}\npipeline: {partition: 'type:decoder'}\n",
                            2) == Lines{});
  REQUIRE(pipeline_problem("parallel: {pipeline: 2}\npipeline: {partition: 'type:conv'}\n", 2) ==
          "c.yaml:4:23: error: pipeline.partition \"type:conv\" matches no decoder layer\n"
          "  remedy: write type:decoder or type:transformer, or best, which balances the cost of "
          "the chunks");
  REQUIRE(pipeline_problem("parallel: {pipeline: 2}\npipeline: {partition: fair}\n", 2) ==
          "c.yaml:4:23: error: pipeline.partition: expected one of best, parameters, uniform, "
          "type:REGEX, found \"fair\"");
}

TEST_CASE("with one stage a schedule has no effect, and a notice says so") {
  REQUIRE(pipeline_problem("parallel: {schedule: zbv}\n", 2) ==
          "c.yaml:3:22: notice: parallel.schedule zbv: only has an effect if parallel.pipeline is "
          "above 1");
  REQUIRE(resolved_pipeline("parallel: {schedule: zbv}\n", 2).config.parallel.virtual_stages == 1);
  REQUIRE(pipeline_problem("parallel: {virtual_stages: 2}\n", 2) ==
          "c.yaml:3:28: notice: parallel.virtual_stages 2: only has an effect if "
          "parallel.pipeline is above 1");
  REQUIRE(
      pipeline_problem("parallel: {pipeline_layers: [3, 4]}\n", 2) ==
      "c.yaml:3:29: notice: parallel.pipeline_layers: only has an effect if parallel.pipeline is "
      "above 1");
}

TEST_CASE("every ZeRO stage may be used with a pipeline, and DeepSpeed's refusal is named") {
  for (int stage = 0; stage < 4; ++stage)
    REQUIRE(pipeline_problems(
                cat("zero_optimization: {stage: ", stage, "}\nparallel: {pipeline: 2}\n"), 4) ==
            Lines{});
  REQUIRE(pipeline_problem("zero_optimization: {stage: 3}\npipeline: {stages: 2}\n", 4) ==
          "c.yaml:3:28: notice: ZeRO stage 3 with pipeline.stages 2: DeepSpeed refuses the two "
          "together, but ftrun shards each stage's parameters");
  REQUIRE(pipeline_problems("zero_optimization: {stage: 1}\npipeline: {stages: 2}\n", 4) ==
          Lines{});
}

TEST_CASE("a unit of all layers cannot be on several stages") {
  REQUIRE(
      pipeline_problem("partition: {unit: model}\nparallel: {pipeline: 2}\n", 2) ==
      "c.yaml:3:19: error: partition.unit model makes one unit of all layers, and pipeline 2 puts "
      "them on different ranks\n  remedy: use layer or block");
  REQUIRE(pipeline_problems("partition: {unit: block}\nparallel: {pipeline: 2}\n", 2) == Lines{});
}

TEST_CASE("pipelines run on CPUs and on GPUs") {
  for (const char* text : {"parallel: {pipeline: 2}\n", "parallel: {pipeline: 2}\ndevice: cuda\n",
                           "pipeline: {stages: 2}\ndevice: cuda\n"})
    REQUIRE(resolved_pipeline(text, 2).unsupported.empty());
}

TEST_CASE("an effective config says what runs, and reads back as itself") {
  for (const char* keys :
       {"pipeline: 2", "pipeline: 2, schedule: zbv", "pipeline: 2, schedule: interleaved",
        "pipeline: 2, pipeline_layers: [4, 4]", "schedule: zbv", "pipeline: 1"}) {
    const ResolvedConfig first = resolved_pipeline(cat("parallel: {", keys, "}\n"), 2);
    const std::string text = effective_yaml(first.config);
    INFO(text);
    const ResolvedConfig second = resolve(written_of(text), {.world_size = 2});
    REQUIRE(second.config == first.config);
    REQUIRE_FALSE(has_errors(second.problems));
  }
}

}  // namespace ftrun
