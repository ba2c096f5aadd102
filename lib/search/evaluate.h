#pragma once

#include <optional>
#include <string>

#include "search/layout.h"
#include "search/search_task.h"
#include "sim/step_time.h"

namespace ftrun {

/// Evaluation holds the memory and the step time of a layout as `ftrun plan --machine` prints them,
/// from the programs of all ranks.
struct Evaluation {
  Layout layout;
  /// The memory of the rank that needs most, for each kind of memory.
  MemoryNeed memory;
  bool fits = false;
  /// The time of a step; absent where it was not requested or the machine lacks a rate (`problem`).
  std::optional<StepTime> time;
  std::string problem;

  bool is_choice() const { return fits && time.has_value(); }
};

/// Plans all ranks of a legal layout: their memory and, with `timed`, the time of a step. Throws
/// the errors of plan_steps().
Evaluation evaluate(const SearchTask& task, const Layout& layout, bool timed = true);

/// Returns the most memory that any rank of a config needs. The config is resolved for a layout.
MemoryNeed memory_of_ranks(const SearchTask& task, const Config& config, const ClassPlans& all);

}  // namespace ftrun
