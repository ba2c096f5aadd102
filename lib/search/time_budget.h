#pragma once

#include <chrono>

#include "base/clock.h"

namespace ftrun {

/// TimeBudget is the time of one search: how much of it is used, and whether full plans that begin
/// now end within it. It learns from the plans that were made how long other plans take.
class TimeBudget {
 public:
  using Clock = std::chrono::steady_clock;

  /// Begins the time of a search of `seconds`.
  explicit TimeBudget(double seconds);
  /// Begins the time of a search for another number of nodes within the `left_seconds` seconds of
  /// this search. It knows the plans that were made, and its first plan may not end late.
  TimeBudget budget_for_more_nodes(double left_seconds) const;

  double elapsed_seconds() const { return seconds_since(begin_); }
  double remaining_seconds() const { return seconds_ - elapsed_seconds(); }
  bool has_spent_share(double share) const { return elapsed_seconds() > share * seconds_; }
  /// Returns whether the part of the time that is for bounds is over.
  bool has_spent_bounds_time() const { return elapsed_seconds() > bounds_seconds_; }

  /// Estimates at which second of the search concurrent full plans end that begin now and whose
  /// efforts (estimate_planning_effort()) add up to `effort`, by those that were made before.
  double estimate_end_seconds(double effort) const;
  /// Returns whether full plans of this effort that begin now probably end within the time.
  bool ends_in_time(double effort) const { return estimate_end_seconds(effort) <= seconds_; }
  /// Returns whether the first full plan may be made although it ends at second `end_seconds` of
  /// the search.
  bool allows_first_plan_until(double end_seconds) const;
  /// Says whether the first full plan may end after the time.
  bool allows_late_first_plan() const { return allows_late_first_plan_; }
  /// Returns the time at which full plans are stopped.
  Clock::time_point deadline() const;

  /// Records the seconds that concurrent full plans took.
  void add_plan_seconds(double seconds) { planned_seconds_ += seconds; }
  /// Records the effort of one full plan.
  void add_plan_effort(double effort) { planned_effort_ += effort; }
  /// Replaces what is known of full plans by what `other` knows.
  void copy_plan_times(const TimeBudget& other);

 private:
  Clock::time_point begin_ = Clock::now();
  double seconds_;
  double bounds_seconds_;
  bool allows_late_first_plan_ = true;
  /// The seconds of all full plans so far, and their effort.
  double planned_seconds_ = 0;
  double planned_effort_ = 0;
};

}  // namespace ftrun
