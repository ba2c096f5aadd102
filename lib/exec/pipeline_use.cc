#include "exec/pipeline_use.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/text.h"
#include "program/schedule_timeline.h"
#include "report/table.h"

namespace ftrun {
namespace {

/// A stage's figures, the mean over its ranks.
struct StageSeconds {
  double span = 0;
  double waited_for_stages = 0;
  double waited_at_end = 0;

  /// `common`: what every rank waits at the end, which is the sum of the norm itself.
  double idle_share(double common) const {
    const double end = waited_at_end - common;
    return (waited_for_stages + end) / (span - common);
  }
};

std::string encode(const PipelineSeconds& seconds) {
  std::ostringstream text;
  text.precision(9);
  text << seconds.span << ' ' << seconds.waited_for_stages << ' ' << seconds.waited_at_end;
  for (const auto& layer : seconds.layers)
    for (const double phase : layer) text << ' ' << phase;
  return text.str();
}

}  // namespace

PipelineUse::PipelineUse(TrainingSetup& setup) : setup_(setup) {}

void PipelineUse::end_step() {
  if (setup_.train().program.stage.count == 1) return;
  if (++steps_ == 2) sums_ = {};
  add(setup_.train_executor().pipeline_seconds());
}

void PipelineUse::add(const PipelineSeconds& seconds) {
  sums_.span += seconds.span;
  sums_.waited_for_stages += seconds.waited_for_stages;
  sums_.waited_at_end += seconds.waited_at_end;
  sums_.layers.resize(seconds.layers.size());
  for (size_t l = 0; l < seconds.layers.size(); ++l)
    for (size_t phase = 0; phase < 4; ++phase) sums_.layers[l][phase] += seconds.layers[l][phase];
}

void PipelineUse::total(Session& session) {
  const StepOptions& options = setup_.plan().options;
  const PipelineLayout& pipeline = options.state.pipeline;
  if (pipeline.stages() == 1 || steps_ == 0) return;
  const RankMesh mesh = state_mesh(options.state);
  const auto layers = static_cast<int32_t>(setup_.train().model.layers.size());
  std::vector<StageSeconds> stages(static_cast<size_t>(pipeline.stages()));
  std::vector<PhaseSeconds> parts(static_cast<size_t>(pipeline.parts()));
  const int ranks_of_stage = mesh.world() / pipeline.stages();
  // How often each part ran each phase, on all its ranks.
  const double times = static_cast<double>(std::max<int64_t>(1, steps_ - 1)) * options.micro_batches * ranks_of_stage;
  const std::vector<std::string> texts = session.exchange("pipeline", encode(sums_));
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream figures(texts[rank]);
    StageSeconds& stage = stages[static_cast<size_t>(mesh.coordinate(static_cast<int>(rank)).pp)];
    double span = 0, waited = 0, at_end = 0;
    figures >> span >> waited >> at_end;
    stage.span += span / ranks_of_stage;
    stage.waited_for_stages += waited / ranks_of_stage;
    stage.waited_at_end += at_end / ranks_of_stage;
    for (int32_t layer = 0; layer < layers; ++layer) {
      PhaseSeconds& part = parts[static_cast<size_t>(pipeline.part_with(layer))];
      for (double* phase : {&part.forward, &part.backward, &part.input_grad, &part.weight_grad}) {
        double seconds = 0;
        figures >> seconds;
        *phase += seconds / times;
      }
    }
  }
  const double common =
      std::min_element(stages.begin(), stages.end(), [](const StageSeconds& a, const StageSeconds& b) {
        return a.waited_at_end < b.waited_at_end;
      })->waited_at_end;
  const auto lists =
      make_schedules(options.schedule, pipeline.stages(), pipeline.chunks(), options.micro_batches);
  const ScheduleTimeline timeline = run_timeline(lists, placement_of(options.schedule), parts);
  for (int stage = 0; stage < pipeline.stages(); ++stage) {
    idle_.push_back(stages[static_cast<size_t>(stage)].idle_share(common));
    idle_by_schedule_.push_back(timeline.idle_share(stage));
  }
}

std::string PipelineUse::text() const {
  if (idle_.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (size_t stage = 0; stage < idle_.size(); ++stage)
    rows.push_back({cat("stage ", stage), percent_text(idle_[stage], 1),
                    percent_text(idle_by_schedule_[stage], 1)});
  return cat("\nwhat each stage waited for the others, of its steps until the update\n",
             format_table({"pipeline", "measured", "by the schedule alone"}, rows));
}

std::map<std::string, std::map<std::string, int64_t>> PipelineUse::record() const {
  const auto per_million = [](double share) { return std::llround(share * 1e6); };
  std::map<std::string, std::map<std::string, int64_t>> record;
  for (size_t stage = 0; stage < idle_.size(); ++stage)
    record[cat("stage ", stage)] = {{"idle_per_million", per_million(idle_[stage])},
                                    {"schedule_idle_per_million", per_million(idle_by_schedule_[stage])}};
  return record;
}

}  // namespace ftrun
