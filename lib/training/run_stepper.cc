#include "training/run_stepper.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "axes/mesh.h"
#include "base/error.h"
#include "cluster/rank_mesh.h"
#include "config/resolve.h"
#include "training/nonfinite_search.h"

namespace ftrun {

RunStepper::RunStepper(const Config& config, Session& session, TrainingSetup& setup,
                       Journal& journal, PlanSummary summary)
    : session_(session),
      setup_(setup),
      resource_use_(config, setup),
      times_(std::move(summary.predicted_step)),
      cpu_load_watch_(session.world_size()) {
  if (!summary.traced_ranks.empty())
    tracer_.emplace(config.train.trace, session, setup.train_plan().program,
                    std::move(summary.traced_ranks), journal, times_.predicted_step());
  if (session.world_size() == 1) return;
  open_replica_check(config, journal);
  open_slow_ranks(config);
}

void RunStepper::open_replica_check(const Config& config, Journal& journal) {
  if (config.train.check_replicas == 0) return;
  replicas_.emplace(
      setup_.plan(), setup_.memory(),
      [this](const std::string& text) { return session_.all_gather_text("replicas", text); },
      [this](std::span<double> numbers) { session_.sum(numbers, "hashes of replicas"); });
  if (!replicas_->has_replicas())
    journal.print(
        "no state is replicated across ranks, so train.check_replicas cannot detect silent "
        "corruption");
}

/// Opens the search for slow ranks. Ranks of the same pipeline stage have the same work, so they
/// are compared with each other.
void RunStepper::open_slow_ranks(const Config& config) {
  const RankMesh mesh = rank_mesh(config);
  std::vector<int> stages;
  for (int rank = 0; rank < session_.world_size(); ++rank)
    stages.push_back(mesh.place_on(rank, kStageAxes));
  slow_ranks_.emplace(session_.rank(), std::move(stages), [this](std::span<double> numbers) {
    session_.sum(numbers, "times of ranks");
  });
}

void RunStepper::run(StepRun& step) {
  resource_use_.begin_step();
  // In an elastic run all ranks that should be traced may have been removed.
  step.traced = step.traced && tracer_.has_value();
  setup_.train_executor().run(step);
  resource_use_.end_step(step.result.finite);
}

void RunStepper::record_measurements(const StepMetrics& metrics) {
  session_.adapt_timeout(metrics.step_seconds);
  const Executor& executor = setup_.train_executor();
  // On GPUs a traced step is not replayed as a CUDA graph, and takes longer than other steps, so
  // its times are not recorded.
  if (tracer_ && tracer_->traces(metrics.step))
    return tracer_->record_if_traced(metrics.step, executor.trace());
  const std::array<double, kInstrKinds> spent = executor.seconds_by_kind();
  const PipelineSeconds& pipeline = executor.pipeline_seconds();
  const auto seconds = [&](bool (*counts)(InstrKind)) {
    double sum = 0;
    for (const InstrTraits& traits : kInstrTraits)
      if (counts(traits.kind)) sum += spent[static_cast<size_t>(traits.kind)];
    return sum;
  };
  times_.add_step(metrics, {.layers = seconds(is_layer_work),
                            .update = seconds(is_update_work),
                            .stage_wait = pipeline.stage_wait_seconds + pipeline.end_wait_seconds});
}

void RunStepper::average_times() {
  const Program& program = setup_.train_plan().program;
  times_.average_over_stage(program.stage.index == 0, [this](std::span<double> numbers) {
    session_.sum(numbers, "times of parts of a step");
  });
}

NonfiniteSearchResult RunStepper::find_nonfinite(const StepRun& step) {
  return ftrun::find_nonfinite(session_, setup_, step);
}

/// Returns warnings about slow ranks. Returns none if the time that a rank waits for others is not
/// known, because without it all ranks seem to take equally long.
std::vector<std::string> RunStepper::find_slow_ranks(const StepMetrics& metrics) {
  if (!slow_ranks_ || !metrics.exposed_communication_seconds) return {};
  const double disk = resource_use_.disk_wait_seconds();
  const double compute = metrics.step_seconds - metrics.data_wait_seconds -
                         *metrics.exposed_communication_seconds - disk;
  return slow_ranks_->add_step(metrics.step,
                               {std::max(0.0, compute), metrics.data_wait_seconds, disk});
}

void RunStepper::check_replicas(int64_t step) {
  if (!replicas_) return;
  session_.show_phase(cat("comparing replicas after step ", step));
  replicas_->compare_replicas(step);
}

}  // namespace ftrun
