#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/model_config.h"
#include "program/memory_plan.h"
#include "program/step_plan.h"
#include "sim/rank_classes.h"

namespace ftrun {

/// TierBudget holds the bytes of each tier that a rank may use.
using TierBudget = std::array<int64_t, kTiers.size()>;
inline constexpr TierBudget kNoBudget{INT64_MAX, INT64_MAX, INT64_MAX};

/// BudgetExcess counts the ranks that need more bytes of a tier than their budget.
struct BudgetExcess {
  Tier tier = Tier::kDevice;
  int64_t budget_bytes = 0;
  int ranks = 0;
  /// The lowest of the ranks that need the most memory, and the bytes that it needs.
  int rank = 0;
  int64_t needed_bytes = 0;
  /// Says whether `needed_bytes` includes the host tier, because CPUs compute and both tiers are
  /// main memory.
  bool with_host = false;
};
/// Returns the text "13 ranks need more than 64.00 GiB of the device tier; rank 3 needs the most:
/// 80.00 GiB".
std::string budget_excess_text(const BudgetExcess& over);

/// RankClassPlans plans all ranks of a config: one rank of each class.
class RankClassPlans {
 public:
  /// Plans one rank of each class. `own_plan` is the plan of rank `rank`, which stands for its
  /// class; borrowed. Throws the errors of plan_steps(). `before_each_plan`, if given, is called
  /// before each further rank is planned, on several threads; what it throws ends the planning.
  RankClassPlans(const Config& config, const ModelConfig& model, int rank, const StepPlan& own_plan,
                 const std::function<void()>& before_each_plan = nullptr);

  const RankClasses& classes() const { return classes_; }
  /// Return the rank that represents a class, and its plan.
  int representative_of(int32_t rank_class) const {
    return ranks_[static_cast<size_t>(rank_class)];
  }
  const StepPlan& plan(int32_t rank_class) const {
    return *plans_[static_cast<size_t>(rank_class)];
  }

  /// Runs find_program_faults() on all ranks' programs of training, then of validation, then of
  /// text.
  std::vector<std::string> find_faults() const;
  /// Throws Error(kBug) if find_faults() finds a fault.
  void require_no_faults() const;

  /// Hashes what all ranks will do. Every rank computes the same hash.
  uint64_t hash() const;

  /// Lists what a rank of each class allocates for all its programs. It is computed once, by the
  /// first call; calls may run concurrently.
  const std::vector<MemoryPlan>& memory_plans() const;
  /// Lists the tiers of which a rank needs more than `budget` at its peak. With `with_host`, the
  /// budget of the device tier is for the device and host tiers together.
  std::vector<BudgetExcess> list_budget_excesses(const TierBudget& budget,
                                                 bool with_host = false) const;

 private:
  RankClasses classes_;
  std::vector<int> ranks_;
  std::vector<const StepPlan*> plans_;
  std::deque<StepPlan> other_plans_;
  /// The result of memory_plans(), which its first call computes.
  mutable std::vector<MemoryPlan> memory_plans_;
  mutable std::once_flag has_memory_plans_;
};

}  // namespace ftrun
