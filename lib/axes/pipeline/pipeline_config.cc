#include "axes/pipeline/pipeline_config.h"

#include "axes/pipeline/balance_stages.h"
#include "axes/pipeline/keys.h"
#include "axes/pipeline/schedule_timeline.h"
#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// The number of micro-batches for each stage below which the notice is written.
constexpr int kMicroBatchesAStage = 4;

double idle_share(const Config& config, int32_t micro_batches) {
  const int stages = pipeline_stages(config), chunks = pipeline_chunks(config);
  const PipelineSchedule schedule = pipeline_schedule(config);
  return simulate_timeline(make_schedules(schedule, stages, chunks, micro_batches),
                           traits_of(schedule).placement, equal_chunk_seconds(stages * chunks))
      .idle_share();
}

PipelineBalance resolved_pipeline_balance(const Config& config) {
  const auto balance = parse_pipeline_balance(config.pipeline.partition);
  require(balance.has_value(), "pipeline.partition was checked");
  return *balance;
}

void check_sum(const ParallelConfig& mesh, int64_t blocks) {
  double sum = 0;
  std::vector<std::string> numbers;
  for (const int64_t count : mesh.pipeline_layers) {
    sum += static_cast<double>(count);
    numbers.push_back(std::to_string(count));
  }
  if (sum == static_cast<double>(blocks)) return;
  throw Error(ExitCode::kUsage,
              cat("parallel.pipeline_layers ", join(numbers, " + "), " = ", number_text(sum),
                  " ≠ the model's ", blocks, " decoder layers"),
              cat("write numbers with the sum ", blocks));
}

}  // namespace

int pipeline_stages(const Config& config) {
  return static_cast<int>(config.parallel.pipeline);
}

int pipeline_chunks(const Config& config) {
  return pipeline_stages(config) == 1 ? 1 : static_cast<int>(config.parallel.virtual_stages);
}

PipelineSchedule pipeline_schedule(const Config& config) {
  return pipeline_stages(config) == 1 ? kDefaultSchedule : config.parallel.schedule;
}

void check_pipeline(const Config& config, int64_t blocks) {
  const ParallelConfig& mesh = config.parallel;
  if (mesh.pipeline == 1) return;
  if (!mesh.pipeline_layers.empty()) return check_sum(mesh, blocks);
  if (pipeline_model_chunks(mesh) <= static_cast<double>(blocks)) return;
  const int64_t max_stages = blocks / mesh.virtual_stages;
  throw Error(ExitCode::kUsage,
              cat("the model's ", blocks, " decoder layers cannot be cut into ",
                  pipeline_model_chunks_text(mesh)),
              max_stages < 2 ? "use fewer chunks, or another kind of parallelism"
                             : cat("use parallel.pipeline ", max_stages, " or less"));
}

PipelineLayout pipeline_layout(const Config& config, const ModelDescription& model) {
  const int stages = pipeline_stages(config), chunks = pipeline_chunks(config);
  if (stages == 1) return {};
  check_pipeline(config, model.block_count);
  const ChunkPlacement placement = traits_of(pipeline_schedule(config)).placement;
  if (!config.parallel.pipeline_layers.empty())
    return layout_of_blocks(stages, chunks, placement, config.parallel.pipeline_layers);
  return balance_stages(model, stages, chunks, placement, resolved_pipeline_balance(config));
}

std::string bubble_notice(const Config& config) {
  const int stages = pipeline_stages(config);
  const auto count = static_cast<int64_t>(config.gradient_accumulation_steps);
  const int32_t enough = kMicroBatchesAStage * stages;
  if (stages == 1 || count >= enough) return "";
  return cat("gradient_accumulation_steps ", count, " with pipeline ", stages, ": stages are idle ",
             percent_text(idle_share(config, static_cast<int32_t>(count)), 0),
             " of a step (schedule ", name_of(config.parallel.schedule),
             ", equal chunks); raise it to ", enough, " for ",
             percent_text(idle_share(config, enough), 0));
}

}  // namespace ftrun
