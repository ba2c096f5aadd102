#include "search/plan_layout.h"

#include <algorithm>
#include <variant>

#include "axes/pipeline/schedule.h"
#include "base/error.h"
#include "program/gpu_overhead.h"
#include "program/step_plan.h"
#include "search/enumerate.h"
#include "search/node_ranks.h"
#include "sim/rank_class_plans.h"

namespace ftrun {

MemoryNeed max_rank_memory(const SearchTask& task, const Config& config,
                           const RankClassPlans& class_plans) {
  MemoryNeed need;
  for (const MemoryPlan& plan : class_plans.memory_plans()) {
    const bool shares = !task.machine.has_gpus;
    need.device_bytes = std::max(need.device_bytes,
                                 shares ? plan.main_memory_bytes() : plan.at(Tier::kDevice).total);
    need.host_bytes = std::max(need.host_bytes, shares ? 0 : plan.at(Tier::kHost).total);
  }
  need.device_bytes += total_bytes(list_gpu_overheads(config, class_plans.plan(0)));
  return need;
}

PlannedLayout plan_layout(const SearchTask& task, const Layout& layout, bool timed,
                          std::chrono::steady_clock::time_point deadline) {
  const auto check_time = [&] {
    if (std::chrono::steady_clock::now() >= deadline) throw PlanDeadlineExceeded();
  };
  const std::variant<Config, std::string> tried = resolve_layout(task, layout);
  if (const auto* refusal = std::get_if<std::string>(&tried))
    throw Error(ExitCode::kUsage, cat(layout_text(layout), ": ", *refusal));
  const Config& config = std::get<Config>(tried);
  const StepPlan own = plan_steps(config, task.model, 0);
  const RankClassPlans class_plans(config, task.model, 0, own, check_time);
  check_time();
  PlannedLayout planned;
  planned.layout = layout;
  planned.memory = max_rank_memory(task, config, class_plans);
  planned.fits = fits_memory(task, planned.memory, ranks_per_node(layout, task.nodes));
  if (!timed) return planned;
  check_time();
  try {
    planned.time =
        predict_step(class_plans, task.machine, {task.nodes, config.threads, task.slow_ranks});
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    planned.failure = error.what();
  }
  return planned;
}

double estimate_planning_effort(const SearchTask& task, const Layout& layout) {
  // A layer's list is one instruction, or several between its collectives; gradients with respect
  // to inputs and weights may be two lists. At stage 3 parameters are gathered for each list.
  constexpr double kPartsOfTensorList = 8, kGathersOfLayer = 4, kOncePerLayer = 40;
  const PipelineScheduleTraits& traits = traits_of(layout.schedule);
  const double lists = layout.pipeline > 1 && traits.splits_backward ? 3 : 2;
  const double each = lists * (layout.tensor > 1 ? kPartsOfTensorList : 2) +
                      (layout.zero == 3 ? kGathersOfLayer : 0) +
                      (layout.recompute == RecomputeLevel::kNone ? 0 : 1);
  // Shards of a stage mostly have two classes: with and without padding at their ends.
  const double classes = layout.zero > 0 && layout.shards() > 1 ? 2 : 1;
  const auto layers = static_cast<double>(task.model.layers + 2);
  return classes * layers * (static_cast<double>(layout.accumulation) * each + kOncePerLayer) +
         static_cast<double>(layout.ranks());
}

}  // namespace ftrun
