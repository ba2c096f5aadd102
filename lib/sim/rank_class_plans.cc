#include "sim/rank_class_plans.h"

#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/run_in_parallel.h"
#include "base/text.h"
#include "sim/program_checker.h"

namespace ftrun {

std::string budget_excess_text(const BudgetExcess& over) {
  return cat(over.ranks, over.ranks == 1 ? " rank needs" : " ranks need", " more than ",
             human_bytes(over.budget_bytes), " of the ", tier_name(over.tier),
             over.with_host ? " and host tiers" : " tier", over.ranks == 1 ? ": rank " : "; rank ",
             over.rank,
             over.ranks == 1 ? " needs " : " needs the most: ", human_bytes(over.needed_bytes));
}

RankClassPlans::RankClassPlans(const Config& config, const ModelConfig& model, int rank,
                               const StepPlan& own_plan,
                               const std::function<void()>& before_each_plan)
    : classes_(find_rank_classes(own_plan.train.model, own_plan.partition, own_plan.options.state)),
      ranks_(classes_.lowest_ranks) {
  const int32_t own_class = classes_.class_of(rank);
  ranks_[static_cast<size_t>(own_class)] = rank;
  for (int32_t c = 0; c < classes_.count(); ++c)
    plans_.push_back(c == own_class ? &own_plan : &other_plans_.emplace_back());
  std::vector<int> ranks;
  for (int32_t c = 0; c < classes_.count(); ++c)
    if (c != own_class) ranks.push_back(representative_of(c));
  run_in_parallel(ranks.size(), [&](size_t i) {
    if (before_each_plan) before_each_plan();
    other_plans_[i] = plan_steps(config, model, ranks[i]);
  });
}

std::vector<std::string> RankClassPlans::find_faults() const {
  std::vector<std::string> faults;
  // The programs of all ranks for one purpose (training, validation or text) are checked together.
  for (size_t purpose = 0; purpose < plan(0).programs().size(); ++purpose) {
    std::vector<const Program*> programs;
    for (const StepPlan* plan : plans_) programs.push_back(plan->programs().at(purpose));
    for (std::string& fault :
         find_program_faults(world_of(classes_, programs, plan(0).options.state)))
      faults.push_back(std::move(fault));
  }
  return faults;
}

void RankClassPlans::require_no_faults() const {
  const std::vector<std::string> faults = find_faults();
  if (!faults.empty()) bug(cat("the step program is wrong: ", join(faults, "; ")));
}

uint64_t RankClassPlans::hash() const {
  std::string text;
  for (const StepPlan* plan : plans_) {
    std::vector<uint64_t> hashes;
    for (const Program* program : plan->programs()) hashes.push_back(program_hash(*program));
    text += cat(join_numbers(hashes, " "), "\n");
    // The row without a gradient is not visible in the programs, so it is added to the hash.
    if (const int64_t row = plan->train.model.row_without_gradient; row >= 0)
      text += cat("no gradient by row ", row, "\n");
  }
  return xxh3(text.data(), text.size());
}

const std::vector<MemoryPlan>& RankClassPlans::memory_plans() const {
  std::call_once(has_memory_plans_, [this] {
    std::vector<MemoryPlan> needed(plans_.size());
    run_in_parallel(plans_.size(), [&](size_t c) { needed[c] = plan_memory(*plans_[c]); });
    memory_plans_ = std::move(needed);
  });
  return memory_plans_;
}

std::vector<BudgetExcess> RankClassPlans::list_budget_excesses(const TierBudget& budget,
                                                               bool with_host) const {
  if (budget == kNoBudget) return {};
  const std::vector<MemoryPlan>& needed = memory_plans();
  std::vector<BudgetExcess> over;
  for (const Tier tier : kTiers) {
    BudgetExcess excess{.tier = tier, .budget_bytes = budget[static_cast<size_t>(tier)]};
    for (int rank = 0; rank < classes_.ranks(); ++rank) {
      const MemoryPlan& plan = needed[static_cast<size_t>(classes_.class_of(rank))];
      const int64_t of_tier = plan.at(tier).total;
      const int64_t bytes = tier == Tier::kDevice && with_host ? plan.main_memory_bytes() : of_tier;
      if (bytes <= excess.budget_bytes) continue;
      ++excess.ranks;
      if (bytes <= excess.needed_bytes) continue;
      excess.rank = rank;
      excess.needed_bytes = bytes;
      excess.with_host = bytes > of_tier;
    }
    if (excess.ranks > 0) over.push_back(excess);
  }
  return over;
}

}  // namespace ftrun
