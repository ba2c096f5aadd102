#include "axes/pipeline/pipeline_config.h"
#include "program/training_model.h"

#include "axes/pipeline/schedule_timeline.h"
#include "models.h"
#include "program/step_plan.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns a resolved config with a pipeline.
Config pipeline_config(int64_t stages, PipelineSchedule schedule = PipelineSchedule::k1F1B,
                       int64_t chunks = 1) {
  Config config;
  config.parallel.data = 1;
  config.parallel.pipeline = stages;
  config.parallel.schedule = schedule;
  config.parallel.virtual_stages = chunks;
  config.train_micro_batch_size_per_gpu = 2;
  config.gradient_accumulation_steps = 8;
  config.data.sequence_length = 4;
  return config;
}

std::string refusal(const Config& config, int64_t blocks) {
  try {
    check_pipeline(config, blocks);
  } catch (const Error& error) {
    return cat(static_cast<int>(error.code()), ": ", error.what());
  }
  return "accepted";
}

TEST_CASE("the schedule of a config is the one it names, and 1F1B on one stage") {
  CHECK(pipeline_schedule(pipeline_config(2, PipelineSchedule::kGpipe)) ==
        PipelineSchedule::kGpipe);
  CHECK(pipeline_schedule(pipeline_config(2)) == PipelineSchedule::k1F1B);
  CHECK(pipeline_schedule(pipeline_config(2, PipelineSchedule::kInterleaved, 2)) ==
        PipelineSchedule::kInterleaved);
  CHECK(pipeline_schedule(pipeline_config(2, PipelineSchedule::kZbH1)) == PipelineSchedule::kZbH1);
  CHECK(pipeline_schedule(pipeline_config(2, PipelineSchedule::kZbV, 2)) == PipelineSchedule::kZbV);
  CHECK(pipeline_schedule(pipeline_config(1, PipelineSchedule::kGpipe)) == PipelineSchedule::k1F1B);
  CHECK(pipeline_chunks(pipeline_config(2, PipelineSchedule::kInterleaved, 3)) == 3);
  CHECK(pipeline_chunks(pipeline_config(1, PipelineSchedule::kZbV, 2)) == 1);
}

TEST_CASE("ranks of a pipeline are the slowest axis of the mesh") {
  Config config = pipeline_config(4);
  config.parallel.data = 2;
  config.parallel.tensor = 3;
  const RankMesh mesh = rank_mesh(config);
  CHECK(mesh.world_size() == 24);
  CHECK(mesh.size(MeshAxis::kPipeline) == 4);
  CHECK(mesh.coordinates_of(6).pipeline == 1);
}

TEST_CASE("a model with fewer layers than chunks is refused with the arithmetic") {
  CHECK(refusal(pipeline_config(4), 4) == "accepted");
  CHECK(refusal(pipeline_config(1), 1) == "accepted");
  CHECK(refusal(pipeline_config(8), 6) ==
        "2: the model's 6 decoder layers cannot be cut into 8 chunks (pipeline 8)\n"
        "  remedy: use parallel.pipeline 6 or less");
  CHECK(refusal(pipeline_config(4, PipelineSchedule::kInterleaved, 3), 7) ==
        "2: the model's 7 decoder layers cannot be cut into 12 chunks (pipeline 4 × virtual_stages "
        "3)\n"
        "  remedy: use parallel.pipeline 2 or less");
  CHECK(refusal(pipeline_config(2, PipelineSchedule::kZbV, 2), 3) ==
        "2: the model's 3 decoder layers cannot be cut into 4 chunks (pipeline 2 × virtual_stages "
        "2)\n"
        "  remedy: use fewer chunks, or another kind of parallelism");
  CHECK(refusal(pipeline_config(2, PipelineSchedule::kInterleaved, INT64_MAX), 7) != "accepted");
}

TEST_CASE("hand-set numbers of layers must add up to those of the model") {
  Config config = pipeline_config(2, PipelineSchedule::kZbV, 2);
  config.parallel.pipeline_layers = {3, 2, 2, 0};
  CHECK(refusal(config, 7) == "accepted");
  CHECK(refusal(config, 8) ==
        "2: parallel.pipeline_layers 3 + 2 + 2 + 0 = 7 ≠ the model's 8 decoder layers\n"
        "  remedy: write numbers with the sum 8");
  const ModelDescription model = build_training_model(config, small_config(7, false), 0);
  const PipelineLayout layout = pipeline_layout(config, model);
  CHECK(layout.layers_of(0, 9) == LayerRange{0, 4});
  CHECK(layout.layers_of(2, 9) == LayerRange{6, 8});
  CHECK(layout.layers_of(3, 9) == LayerRange{8, 9});
  CHECK(layout.stage_of(3) == 0);
}

TEST_CASE("a pipeline is cut by cost, or as pipeline.partition says") {
  ModelConfig small = small_config(12, false);
  small.vocab_rows = 2000;
  const auto ends = [&](const char* partition) {
    Config config = pipeline_config(3);
    config.pipeline.partition = partition;
    const PipelineLayout layout = pipeline_layout(config, build_training_model(config, small, 0));
    return std::vector<int32_t>{layout.layers_of(0, 14).end, layout.layers_of(1, 14).end};
  };
  CHECK(ends("uniform") == std::vector<int32_t>{4, 9});
  CHECK(ends("type:DecoderLayer") == std::vector<int32_t>{5, 9});
  CHECK(ends("parameters") == std::vector<int32_t>{2, 12});
  const std::vector<int32_t> best = ends("best");
  CHECK(best[1] > 9);  // the head costs as much as several blocks
  CHECK(best[0] > 2);
  CHECK(pipeline_layout(pipeline_config(1), build_training_model(pipeline_config(1), small, 0))
            .model_chunks() == 1);
}

TEST_CASE("too few micro-batches are reported, with what they cost") {
  CHECK(bubble_notice(pipeline_config(1)) == "");
  Config config = pipeline_config(2);
  CHECK(bubble_notice(config) == "");
  config.gradient_accumulation_steps = 7;
  // The bubble is 1 of 8 + 1 slots.
  CHECK(bubble_notice(config) ==
        "gradient_accumulation_steps 7 with pipeline 2: stages are idle 12 % of a step (schedule "
        "1f1b, equal chunks); raise it to 8 for 11 %");
  config = pipeline_config(4, PipelineSchedule::kInterleaved, 2);
  // The bubbles are 3 / 2 of 8 + 3 / 2 slots, and of 16 + 3 / 2.
  CHECK(bubble_notice(config) ==
        "gradient_accumulation_steps 8 with pipeline 4: stages are idle 16 % of a step (schedule "
        "interleaved, equal chunks); raise it to 16 for 9 %");
}

}  // namespace
}  // namespace ftrun
