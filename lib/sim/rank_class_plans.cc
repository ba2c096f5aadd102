#include "sim/rank_class_plans.h"

#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/run_in_parallel.h"
#include "base/text.h"
#include "sim/check_world.h"

namespace ftrun {

std::string over_budget_text(const OverBudget& over) {
  return cat(over.ranks, over.ranks == 1 ? " rank needs" : " ranks need", " more than ",
             human_bytes(over.budget), " of the ", tier_name(over.tier),
             over.with_host ? " and host tiers" : " tier", over.ranks == 1 ? ": rank " : "; rank ",
             over.rank,
             over.ranks == 1 ? " needs " : " needs the most: ", human_bytes(over.needed));
}

RankClassPlans::RankClassPlans(const Config& config, const ModelConfig& model, int rank,
                               const StepPlan& own, const std::function<void()>& before_each)
    : classes_(rank_classes(own.train.model, own.partition, own.options.state)),
      ranks_(classes_.lowest_ranks) {
  const int32_t own_class = classes_.class_of(rank);
  ranks_[static_cast<size_t>(own_class)] = rank;
  for (int32_t c = 0; c < classes_.count(); ++c)
    plans_.push_back(c == own_class ? &own : &others_.emplace_back());
  std::vector<int> ranks;
  for (int32_t c = 0; c < classes_.count(); ++c)
    if (c != own_class) ranks.push_back(representative_of(c));
  run_in_parallel(ranks.size(), [&](size_t i) {
    if (before_each) before_each();
    others_[i] = plan_steps(config, model, ranks[i]);
  });
}

std::vector<std::string> RankClassPlans::check() const {
  std::vector<std::string> faults;
  // The programs of all ranks for one purpose (training, validation or text) are checked together.
  for (size_t purpose = 0; purpose < plan(0).programs().size(); ++purpose) {
    std::vector<const Program*> programs;
    for (const StepPlan* plan : plans_) programs.push_back(plan->programs().at(purpose));
    for (std::string& fault : check_world(world_of(classes_, programs, plan(0).options.state)))
      faults.push_back(std::move(fault));
  }
  return faults;
}

void RankClassPlans::require_no_faults() const {
  const std::vector<std::string> faults = check();
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

const std::vector<MemoryPlan>& RankClassPlans::memory() const {
  std::call_once(has_memory_, [this] {
    std::vector<MemoryPlan> needed(plans_.size());
    run_in_parallel(plans_.size(), [&](size_t c) { needed[c] = memory_plan(*plans_[c]); });
    memory_ = std::move(needed);
  });
  return memory_;
}

std::vector<OverBudget> RankClassPlans::over_budget(const TierBudget& budget,
                                                    bool with_host) const {
  if (budget == kNoBudget) return {};
  const std::vector<MemoryPlan>& needed = memory();
  std::vector<OverBudget> over;
  for (const Tier tier : kTiers) {
    OverBudget found{.tier = tier, .budget = budget[static_cast<size_t>(tier)]};
    for (int rank = 0; rank < classes_.ranks(); ++rank) {
      const MemoryPlan& plan = needed[static_cast<size_t>(classes_.class_of(rank))];
      const int64_t of_tier = plan.at(tier).total;
      const int64_t bytes = tier == Tier::kDevice && with_host ? plan.main_memory() : of_tier;
      if (bytes <= found.budget) continue;
      ++found.ranks;
      if (bytes <= found.needed) continue;
      found.rank = rank;
      found.needed = bytes;
      found.with_host = bytes > of_tier;
    }
    if (found.ranks > 0) over.push_back(found);
  }
  return over;
}

}  // namespace ftrun
