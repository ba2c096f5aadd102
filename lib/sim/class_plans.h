#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/config.h"
#include "program/memory_plan.h"
#include "program/step_plan.h"
#include "sim/rank_classes.h"

namespace ftrun {

/// Bytes of each tier that a rank may take.
using TierBudget = std::array<int64_t, kTiers.size()>;
inline constexpr TierBudget kNoBudget{INT64_MAX, INT64_MAX, INT64_MAX};

/// Ranks that need more of a tier than there is.
struct OverBudget {
  Tier tier = Tier::kDevice;
  int64_t budget = 0;
  int ranks = 0;
  /// The first of those that need most, and what it needs.
  int rank = 0;
  int64_t needed = 0;
};
/// "13 ranks need more than 64.00 GiB of the device tier; rank 3 needs the most: 80.00 GiB".
std::string to_text(const OverBudget& over);

/// ClassPlans plans what all ranks of a config will do: one rank of each class.
class ClassPlans {
 public:
  /// `own` is the plan of rank `rank`, which stands for its class; borrowed. Errors of
  /// plan_steps().
  ClassPlans(const Config& config, const ModelConfig& model, int rank, const StepPlan& own);

  const RankClasses& classes() const { return classes_; }
  /// A rank that runs what the class does, and its plan.
  int rank_of(int32_t of_class) const { return ranks_[static_cast<size_t>(of_class)]; }
  const StepPlan& plan(int32_t of_class) const { return *plans_[static_cast<size_t>(of_class)]; }

  /// check_world() over all ranks' programs of training, then of validation, then of text.
  std::vector<std::string> check() const;
  /// Error(kBug) where that finds anything.
  void require_sound() const;

  /// Hash of what all ranks do: the same on each of them.
  uint64_t hash() const;

  /// Lists what a rank of each class allocates for all that it runs.
  std::vector<MemoryPlan> memory() const;
  /// Tiers of which a rank needs more than `budget` has, at its fullest moment.
  std::vector<OverBudget> over_budget(const TierBudget& budget) const;

 private:
  RankClasses classes_;
  std::vector<int> ranks_;
  std::vector<const StepPlan*> plans_;
  std::deque<StepPlan> others_;
};

}  // namespace ftrun
