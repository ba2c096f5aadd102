#pragma once

#include <optional>
#include <string>

#include "search/layout.h"
#include "search/search_task.h"
#include "sim/step_time.h"

namespace ftrun {

/// Evaluation is what the programs of all ranks of a layout need and take: the figures that
/// `ftrun plan --machine` prints for it.
struct Evaluation {
  Layout layout;
  /// The rank that needs most of each.
  MemoryNeed memory;
  bool fits = false;
  /// The time of a step, unless it was not asked for or the machine lacks a rate (`problem`).
  std::optional<StepTime> time;
  std::string problem;

  bool is_choice() const { return fits && time.has_value(); }
};

/// Plans all ranks of a legal layout: their memory and, with `timed`, the time of a step. Errors of
/// plan_steps().
Evaluation evaluate(const SearchTask& task, const Layout& layout, bool timed = true);

/// The memory of the ranks of a config that was resolved for a layout.
MemoryNeed memory_of_ranks(const SearchTask& task, const Config& config, const ClassPlans& all);

}  // namespace ftrun
