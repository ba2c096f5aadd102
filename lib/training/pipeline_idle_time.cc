#include "training/pipeline_idle_time.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "axes/mesh.h"
#include "base/table.h"
#include "base/text.h"
#include "program/layer_instr.h"

namespace ftrun {
namespace {

std::string encode(const StageActionSeconds& seconds) {
  std::ostringstream text;
  text.precision(9);
  text << seconds.waited_seconds << ' ' << seconds.after_actions_seconds;
  for (const double action : seconds.actions) text << ' ' << action;
  return text.str();
}

StageActionSeconds decode(const std::string& text) {
  std::istringstream figures(text);
  StageActionSeconds seconds;
  figures >> seconds.waited_seconds >> seconds.after_actions_seconds;
  for (double action = 0; figures >> action;) seconds.actions.push_back(action);
  return seconds;
}

}  // namespace

void StageActionSeconds::add(const PipelineSeconds& step, const std::vector<ScheduleAction>& list,
                             const PipelineLayout& pipeline, int stage, int32_t layers) {
  waited_seconds += step.stage_wait_seconds + step.end_wait_seconds;
  after_actions_seconds += step.after_layers_seconds;
  actions.resize(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const LayerRange chunk =
        pipeline.layers_of(pipeline.model_chunk_of(stage, list[i].chunk), layers);
    for (int32_t layer = chunk.first; layer < chunk.end; ++layer) {
      const auto found =
          step.layer_seconds.find({instr_kind_of(list[i].phase), layer, list[i].micro_batch});
      if (found != step.layer_seconds.end()) actions[i] += found->second;
    }
  }
  actions.front() += step.before_layers_seconds;
}

void StageActionSeconds::add(const StageActionSeconds& other) {
  waited_seconds += other.waited_seconds;
  after_actions_seconds += other.after_actions_seconds;
  actions.resize(other.actions.size());
  for (size_t i = 0; i < actions.size(); ++i) actions[i] += other.actions[i];
}

std::vector<IdleShare> idle_shares(const StageActions& lists, ChunkPlacement placement,
                                   const std::vector<StageActionSeconds>& stages) {
  ActionSeconds seconds;
  for (const StageActionSeconds& stage : stages) seconds.push_back(stage.actions);
  const ScheduleTimeline timeline = simulate_timeline(lists, placement, seconds);
  double makespan_seconds = 0;
  for (size_t s = 0; s < stages.size(); ++s)
    makespan_seconds = std::max(makespan_seconds, timeline.stages[s].actions.back().end_seconds +
                                                      stages[s].after_actions_seconds);
  std::vector<IdleShare> shares;
  for (size_t s = 0; s < stages.size(); ++s) {
    const double busy = timeline.stages[s].busy_seconds + stages[s].after_actions_seconds;
    shares.push_back({stages[s].waited_seconds / (stages[s].waited_seconds + busy),
                      1 - busy / makespan_seconds});
  }
  return shares;
}

PipelineIdleTime::PipelineIdleTime(TrainingSetup& setup) : setup_(setup) {
  if (pipeline().stages() == 1) return;
  lists_ = make_schedules(options().schedule, pipeline().stages(), pipeline().chunks(),
                          options().micro_batches);
}

void PipelineIdleTime::end_step() {
  if (lists_.empty()) return;
  if (++steps_ == 2) sums_ = {};
  const int stage = options().state.pipeline_stage;
  sums_.add(setup_.train_executor().pipeline_seconds(), lists_[static_cast<size_t>(stage)],
            pipeline(), stage, static_cast<int32_t>(setup_.train_plan().model.layers.size()));
}

void PipelineIdleTime::sum_over_ranks(Session& session) {
  if (lists_.empty() || steps_ == 0) return;
  const RankMesh mesh = state_mesh(options().state);
  std::vector<StageActionSeconds> stages(lists_.size());
  const std::vector<std::string> texts = session.all_gather_text("pipeline", encode(sums_));
  for (size_t rank = 0; rank < texts.size(); ++rank)
    stages[static_cast<size_t>(mesh.place_on(static_cast<int>(rank), kStageAxes))].add(
        decode(texts[rank]));
  idle_ = idle_shares(lists_, traits_of(options().schedule).placement, stages);
}

std::string PipelineIdleTime::text() const {
  if (idle_.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (size_t stage = 0; stage < idle_.size(); ++stage)
    rows.push_back({cat("stage ", stage), percent_text(idle_[stage].measured, 1),
                    percent_text(idle_[stage].by_schedule, 1)});
  return cat("\ntime that each stage waited for others, as a share of its steps until the update\n",
             format_table({"pipeline", "measured", "by the schedule alone"}, rows));
}

std::map<std::string, std::map<std::string, int64_t>> PipelineIdleTime::manifest_values() const {
  const auto per_million = [](double share) { return std::llround(share * 1e6); };
  std::map<std::string, std::map<std::string, int64_t>> record;
  for (size_t stage = 0; stage < idle_.size(); ++stage)
    record[cat("stage ", stage)] = {
        {"idle_per_million", per_million(idle_[stage].measured)},
        {"schedule_idle_per_million", per_million(idle_[stage].by_schedule)}};
  return record;
}

}  // namespace ftrun
