#include "training/check_rank_programs.h"

#include <algorithm>
#include <string>

#include "base/checksum.h"
#include "sim/rank_class_plans.h"

namespace ftrun {
namespace {

std::vector<int> choose_traced_ranks(const TraceConfig& trace, const RankClasses& classes) {
  if (trace.steps.empty()) return {};
  if (trace.ranks.empty()) return classes.lowest_ranks;
  std::vector<int> ranks;
  for (const int64_t rank : trace.ranks)
    if (rank < classes.ranks()) ranks.push_back(static_cast<int>(rank));
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace

/// Checks the programs of all ranks on each rank. A rank plans one program for each class of ranks
/// (its own program for its own class), so a few plans and one walk are enough for any number of
/// ranks. Ranks of different pipeline stages run different programs, so ranks compare hashes of the
/// programs of all classes.
PlanSummary check_rank_programs(const Config& config, const TrainingSetup& setup,
                                Session& session) {
  std::string program_hash;
  PlanSummary summary;
  session.run_on_all_ranks("checking the step program", [&] {
    const RankClassPlans plans(config, setup.model_config(), session.rank(), setup.plan());
    plans.require_no_faults();
    program_hash = hex64(plans.hash());
    summary.traced_ranks = choose_traced_ranks(config.train.trace, plans.classes());
    if (session.rank() == 0)
      summary.predicted_step = predict_step_on_this_machine(
          plans,
          std::count(session.nodes().begin(), session.nodes().end(), session.nodes().front()),
          config.threads, summary.traced_ranks);
  });
  session.check_ranks_match("the step program", program_hash);
  return summary;
}

}  // namespace ftrun
