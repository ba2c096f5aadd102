#include "search/time_budget.h"

#include <algorithm>

namespace ftrun {
namespace {

/// The share of the search time after which no more bounds are computed.
constexpr double kBoundsShare = 0.5;
/// The share of the search time for each larger number of nodes that is tried if nothing fits.
constexpr double kNodesShare = 0.2;
/// The seconds that the first full plan may take beyond the time of the search.
constexpr double kGraceSeconds = 1;
/// The seconds that a full plan takes for each unit of estimate_planning_effort(), while none is
/// measured, and how much longer than measured it may take.
constexpr double kSecondsOfEffort = 10e-6;
constexpr double kEffortMargin = 1.3;

}  // namespace

TimeBudget::TimeBudget(double seconds)
    : seconds_(seconds), bounds_seconds_(kBoundsShare * seconds) {}

TimeBudget TimeBudget::budget_for_more_nodes(double left_seconds) const {
  TimeBudget budget(left_seconds);
  budget.bounds_seconds_ = kBoundsShare * std::min(left_seconds, seconds_ * kNodesShare);
  budget.allows_late_first_plan_ = false;
  budget.copy_plan_times(*this);
  return budget;
}

double TimeBudget::estimate_end_seconds(double effort) const {
  const double seconds_of_effort =
      planned_effort_ > 0 ? kEffortMargin * planned_seconds_ / planned_effort_ : kSecondsOfEffort;
  return elapsed_seconds() + effort * seconds_of_effort;
}

bool TimeBudget::allows_first_plan_until(double end_seconds) const {
  return end_seconds <= seconds_ + kGraceSeconds;
}

TimeBudget::Clock::time_point TimeBudget::deadline() const {
  const double max_seconds = std::max(seconds_, 0.0) + kGraceSeconds;
  return begin_ +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(max_seconds));
}

void TimeBudget::copy_plan_times(const TimeBudget& other) {
  planned_seconds_ = other.planned_seconds_;
  planned_effort_ = other.planned_effort_;
}

}  // namespace ftrun
