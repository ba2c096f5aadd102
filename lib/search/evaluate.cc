#include "search/evaluate.h"

#include <algorithm>
#include <variant>

#include "base/error.h"
#include "program/gpu_overhead.h"
#include "program/step_plan.h"
#include "search/enumerate.h"
#include "search/rank_place.h"
#include "sim/class_plans.h"

namespace ftrun {

MemoryNeed memory_of_ranks(const SearchTask& task, const Config& config, const ClassPlans& all) {
  MemoryNeed most;
  for (const MemoryPlan& plan : all.memory()) {
    const bool shares = !task.machine.has_gpus;
    most.device = std::max(most.device, shares ? plan.main_memory() : plan.at(Tier::kDevice).total);
    most.host = std::max(most.host, shares ? 0 : plan.at(Tier::kHost).total);
  }
  most.device += total_bytes(gpu_overheads(config, all.plan(0)));
  return most;
}

Evaluation evaluate(const SearchTask& task, const Layout& layout, bool timed) {
  const std::variant<Config, std::string> tried = try_layout(task, layout);
  if (const auto* refusal = std::get_if<std::string>(&tried))
    throw Error(ExitCode::kUsage, cat(layout_text(layout), ": ", *refusal));
  const Config& config = std::get<Config>(tried);
  const StepPlan own = plan_steps(config, task.model, 0);
  const ClassPlans all(config, task.model, 0, own);
  Evaluation found;
  found.layout = layout;
  found.memory = memory_of_ranks(task, config, all);
  found.fits = fits_memory(task, found.memory, ranks_of_node(layout, task.nodes));
  if (!timed) return found;
  try {
    found.time = predict_step(all, task.machine, {task.nodes, config.threads, task.slow});
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    found.problem = error.what();
  }
  return found;
}

}  // namespace ftrun
