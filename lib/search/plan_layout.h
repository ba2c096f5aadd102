#pragma once

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>

#include "search/layout.h"
#include "search/search_task.h"
#include "sim/step_time.h"

namespace ftrun {

/// PlannedLayout holds the memory and the step time of a layout as `ftrun plan --machine` prints
/// them, from the programs of all ranks.
struct PlannedLayout {
  Layout layout;
  /// The memory of the rank that needs the most, for each kind of memory.
  MemoryNeed memory;
  bool fits = false;
  /// The time of a step; absent where it was not requested or the machine lacks a rate (`failure`).
  std::optional<StepTime> time;
  std::string failure;

  /// Returns whether the ranking of a search includes the layout: it fits, and its time is known.
  bool is_ranked() const { return fits && time.has_value(); }
  /// Returns whether `memory` is set. It is not if the layout could not be planned (`failure`).
  bool has_memory() const { return memory.device_bytes > 0; }
};

/// PlanDeadlineExceeded is thrown if the time for a full plan is over before the plan is
/// complete.
class PlanDeadlineExceeded : public std::runtime_error {
 public:
  PlanDeadlineExceeded() : std::runtime_error("the time for the plan is over") {}
};

/// Plans all ranks of an allowed layout: their memory and, with `timed`, the time of a step. Throws
/// the errors of plan_steps(), and PlanDeadlineExceeded after `deadline`.
PlannedLayout plan_layout(
    const SearchTask& task, const Layout& layout, bool timed = true,
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max());

/// Estimates the effort of a full plan: about the number of instructions in the programs of all
/// classes of ranks. It orders layouts by the time that their plans take; it is no bound.
double estimate_planning_effort(const SearchTask& task, const Layout& layout);

/// Returns the maximum memory that any rank of a config needs. The config is resolved for a layout.
MemoryNeed max_rank_memory(const SearchTask& task, const Config& config,
                           const RankClassPlans& class_plans);

}  // namespace ftrun
