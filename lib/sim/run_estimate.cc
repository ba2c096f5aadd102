#include "sim/run_estimate.h"

#include <algorithm>
#include <cmath>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/cost.h"
#include "graph/layer_graph.h"
#include "model/size.h"
#include "program/step_plan.h"
#include "program/training_model.h"

namespace ftrun {
namespace {

constexpr double kSecondsPerHour = 3600;

/// Counts the floating-point operations of a micro-batch in all layers of a rank's model.
double executed_flops(const ModelDescription& model) {
  std::vector<double> flops_of_graph;
  for (const LayerGraph& graph : model.graphs) {
    double sum = 0;
    for (const auto* list : {&graph.forward, &graph.backward})
      for (const Op& op : *list) sum += op_flops(graph, op);
    flops_of_graph.push_back(sum);
  }
  double sum = 0;
  for (const Layer& layer : model.layers) sum += flops_of_graph[static_cast<size_t>(layer.graph)];
  return sum;
}

}  // namespace

double recomputed_flops_per_token(const Config& config, const ModelConfig& model,
                                  const ModelDescription& trained) {
  if (config.recompute.policy == RecomputeLevel::kNone) return 0;
  Config keeps = config;
  keeps.recompute = {};
  const double more =
      executed_flops(trained) - executed_flops(build_training_model(keeps, model, 0));
  return std::max(more, 0.0) * static_cast<double>(config.parallel.tensor) /
         static_cast<double>(trained.batch.tokens());
}

RunEstimate estimate_run(const Config& config, const ModelConfig& model, const StepPlan& plan,
                         const StepTime& time, const Machine& machine, int64_t nodes,
                         int64_t steps) {
  RunEstimate run;
  const ModelDescription& trained = plan.train.model;
  run.tokens_per_second =
      static_cast<double>(config.train_batch_size * config.data.sequence_length) / time.seconds;
  // MFU is not computed for adapters: the formulas count the gradients of all weights, and training
  // an adapter computes only a few of them.
  if (config.adapter.type == AdapterType::kNone && time.matmul_flop_rate > 0) {
    const TrainingFlops flops = training_flops_per_token(trained);
    const auto share = [&](double per_token) {
      return run.tokens_per_second * per_token / time.matmul_flop_rate;
    };
    run.mfu = share(flops.full);
    run.mfu_causal = share(flops.causal);
    run.hfu = share(flops.full + recomputed_flops_per_token(config, model, trained));
  }
  run.steps = steps;
  run.hours = static_cast<double>(steps) * time.seconds / kSecondsPerHour;
  const double devices = machine.has_gpus ? static_cast<double>(rank_mesh(config).world_size())
                                          : static_cast<double>(nodes * machine.devices);
  run.device_hours = run.hours * devices;
  run.cost = run.device_hours * machine.price.per_hour;
  run.checkpoint_bytes = checkpoint_bytes(plan);
  if (machine.disk_write_bandwidth > 0)
    run.checkpoint_seconds = static_cast<double>(run.checkpoint_bytes) /
                             (machine.disk_write_bandwidth * static_cast<double>(nodes));
  return run;
}

std::string run_estimate_text(const RunEstimate& run, const StepTime& time, const Machine& machine,
                              int64_t checkpoint_every) {
  std::string text = cat("time of a step on ", machine.name, ": ", seconds_text(time.seconds), ", ",
                         human_count(std::llround(run.tokens_per_second)), " tokens/s");
  if (run.mfu > 0)
    text += cat(", ", percent_text(run.mfu, 1), " MFU, ", percent_text(run.hfu, 1), " HFU");
  text += cat(" (predicted)\n", step_parts_text(time));
  if (run.mfu > 0)
    text += cat("MFU by the causal half of the scores: ", percent_text(run.mfu_causal, 1), "\n");
  if (run.steps > 0) {
    text += cat("run: ", count_text(run.steps, "step"), ", ",
                human_seconds(run.hours * kSecondsPerHour), ", ",
                format_number("%.4g", run.device_hours), " device-hours");
    if (run.cost > 0)
      text += cat(", ", money_text(run.cost, machine.price), " (", price_text(machine.price),
                  " per device)");
    text += '\n';
  }
  if (run.checkpoint_seconds > 0) {
    text += cat("checkpoint: ", human_bytes(run.checkpoint_bytes), ", ",
                human_seconds(run.checkpoint_seconds), " at the disks' rate");
    if (checkpoint_every > 0)
      text += cat(
          " (",
          percent_text(
              run.checkpoint_seconds / (static_cast<double>(checkpoint_every) * time.seconds), 1),
          " of the time of ", checkpoint_every, " steps)");
    text += '\n';
  }
  return text;
}

}  // namespace ftrun
