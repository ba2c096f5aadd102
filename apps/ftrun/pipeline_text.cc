#include "pipeline_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "axes/pipeline/balance_stages.h"
#include "axes/pipeline/pipeline_config.h"
#include "axes/pipeline/schedule_picture.h"
#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "program/step_plan.h"
#include "program/training_model.h"

namespace ftrun {
namespace {

constexpr size_t kPageColumns = 120;
/// The maximum number of micro-batches for which the timeline is computed, because it holds every
/// action of a step.
constexpr int64_t kMaxMicroBatches = 100'000;

/// Lists the layers of a model chunk: "embed, 0-7", "8-15", "24-29, head".
std::string layers_text(const ModelDescription& model, const LayerRange& range) {
  std::vector<std::string> parts;
  const int32_t last = static_cast<int32_t>(model.layers.size()) - 1;
  // Layer 0 is the embedding, so layer k of the model is block k-1.
  const int32_t first_block = std::max(range.first, 1) - 1,
                end_block = std::min(range.end, last) - 1;
  if (range.contains(0)) parts.emplace_back("embed");
  if (first_block + 1 == end_block) parts.push_back(std::to_string(first_block));
  if (first_block + 1 < end_block) parts.push_back(cat(first_block, "-", end_block - 1));
  if (range.contains(last)) parts.emplace_back("head");
  return join(parts, ", ");
}

/// Lists the layers of all chunks of a stage, in order of the chunks.
std::string stage_layers_text(const ModelDescription& model, const PipelineLayout& layout,
                              int stage) {
  std::vector<std::string> chunks;
  for (int chunk = 0; chunk < layout.chunks(); ++chunk)
    chunks.push_back(
        layers_text(model, layout.layers_of(layout.model_chunk_of(stage, chunk),
                                            static_cast<int32_t>(model.layers.size()))));
  return join(chunks, " | ");
}

/// Explains the letters of the timeline.
std::string legend_text(PipelineSchedule schedule, int chunks) {
  const bool split = traits_of(schedule).splits_backward;
  return cat("F: forward\n",
             split ? "I: input gradients\nW: weight gradients\n" : "B: backward\n",
             "number after a letter: micro-batch\n",
             chunks > 1 ? cat("a to ", static_cast<char>('a' + std::min(chunks, 26) - 1),
                              " after a number: chunk of the stage\n")
                        : "",
             ".: the stage waits\n"
             "times: from the costs of operations, without transfers\n");
}

std::string stages_table(const ModelDescription& model, const PipelineLayout& layout,
                         const StageActions& lists, const ScheduleTimeline& timeline,
                         const std::string& kept_heading) {
  double longest = 0;
  for (const StageTimeline& stage : timeline.stages)
    longest = std::max(longest, stage.busy_seconds);
  std::vector<std::vector<std::string>> rows;
  for (int stage = 0; stage < layout.stages(); ++stage) {
    const auto s = static_cast<size_t>(stage);
    rows.push_back({std::to_string(stage), stage_layers_text(model, layout, stage),
                    percent_text(timeline.stages[s].busy_seconds / longest, 1),
                    percent_text(timeline.idle_share(stage), 1),
                    std::to_string(max_in_flight(lists[s])),
                    std::to_string(max_awaiting_input_grad(lists[s]))});
  }
  return format_table({"stage", "layers", "work", "idle", "in flight", kept_heading}, rows);
}

}  // namespace

std::string pipeline_text(const Config& config, const ModelConfig& model_config, size_t width) {
  const int stages = pipeline_stages(config), chunks = pipeline_chunks(config);
  if (stages == 1)
    throw Error(ExitCode::kUsage, "--schedule: the config has no pipeline",
                "write parallel.pipeline, the number of stages");
  if (config.gradient_accumulation_steps > kMaxMicroBatches)
    throw Error(ExitCode::kUsage,
                cat("--schedule: ", config.gradient_accumulation_steps,
                    " micro-batches cannot be drawn; the limit is ", kMaxMicroBatches),
                cat("set gradient_accumulation_steps to at most ", kMaxMicroBatches,
                    " for this picture: further micro-batches repeat the same pattern"));
  const auto count = static_cast<int32_t>(config.gradient_accumulation_steps);
  const PipelineSchedule schedule = pipeline_schedule(config);
  const ModelDescription model = build_training_model(config, model_config, 0);
  const PipelineLayout layout = pipeline_layout(config, model);
  const auto lists = make_schedules(schedule, stages, chunks, count);
  const ScheduleTimeline timeline =
      simulate_timeline(lists, traits_of(schedule).placement, chunk_costs(model, layout));
  const std::string kept_heading = traits_of(schedule).splits_backward ? "before I" : "before B";
  return cat(
      "schedule ", name_of(config.parallel.schedule), ": ", stages, " stages, ",
      chunks > 1 ? cat(chunks, " chunks each, ") : "", count,
      count == 1 ? " micro-batch\n" : " micro-batches\n", schedule_picture(timeline, width),
      legend_text(schedule, chunks), "\n",
      stages_table(model, layout, lists, timeline, kept_heading),
      "work: time relative to the slowest stage\n"
      "idle: share of the step\n"
      "in flight: largest number of micro-batches of a chunk whose activations the stage keeps\n",
      kept_heading, ": of these, micro-batches whose input gradients are not computed yet\n",
      "idle over all stages: ", percent_text(timeline.idle_share(), 1), "\n");
}

std::string stage_memory_text(const RankClassPlans& plans) {
  const StepPlan& first_plan = plans.plan(0);
  const PipelineLayout& layout = first_plan.options.state.pipeline;
  if (layout.stages() == 1) return "";
  const std::vector<MemoryPlan>& memory = plans.memory_plans();
  std::vector<const MemoryPlan*> peak(static_cast<size_t>(layout.stages()));
  for (int32_t c = 0; c < plans.classes().count(); ++c) {
    const MemoryPlan& class_memory = memory[static_cast<size_t>(c)];
    const MemoryPlan*& fullest =
        peak[static_cast<size_t>(plans.plan(c).options.state.pipeline_stage)];
    if (fullest == nullptr || class_memory.main_memory_bytes() > fullest->main_memory_bytes())
      fullest = &class_memory;
  }
  std::vector<std::vector<std::string>> rows;
  for (int stage = 0; stage < layout.stages(); ++stage) {
    const MemoryPlan& fullest = *peak[static_cast<size_t>(stage)];
    const TierPlan& device = fullest.at(Tier::kDevice);
    rows.push_back(
        {std::to_string(stage), stage_layers_text(first_plan.train.model, layout, stage)});
    for (const Category category : {Category::kParameters, Category::kGradients,
                                    Category::kOptimizer, Category::kActivations})
      rows.back().push_back(human_bytes(device.bytes_of(category)));
    rows.back().push_back(human_bytes(device.total));
    rows.back().push_back(human_bytes(fullest.at(Tier::kHost).total));
  }
  return cat(
      "for each stage, the rank that needs the most memory; columns are device memory, `host` is "
      "all main memory\n",
      format_table({"stage", "layers", "parameters", "gradients", "optimizer", "activations",
                    "device", "host"},
                   rows));
}

size_t output_columns() {
  winsize size{};
  const bool terminal = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return terminal ? size.ws_col : kPageColumns;
}

}  // namespace ftrun
