#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "search/bound.h"
#include "search/evaluate.h"
#include "search/layout.h"
#include "search/search_task.h"

namespace ftrun {

/// SearchLimits end a search before it has proved its result.
struct SearchLimits {
  /// Seconds after which nothing more is begun. At least some layouts are bounded and two planned
  /// exactly; another exact plan is begun if the longest one so far would end in time.
  double seconds = 10;
  /// Looks for a sufficient number of nodes where nothing fits.
  bool more_nodes = true;
};

/// WhyNot compares a plain choice with the layout that was found.
struct WhyNot {
  /// "ZeRO 1", "tensor 2", "recompute full".
  std::string choice;
  /// The layout that was found is of this choice.
  bool chosen = false;
  /// The fastest planned layout of the choice or, where none fits, one that needs least; absent
  /// where none is legal, or all need too much by their bounds.
  std::optional<Evaluation> best;
  /// The least memory and time of its legal layouts by their bounds.
  std::optional<Bound> bound;
  /// Some of its legal layouts may fit, by their bounds.
  bool may_fit = false;
  /// Ranks on a node in the legal layout whose bound of device memory is the lowest.
  int64_t ranks = 1;
  /// The first refusal, where none is legal.
  std::string refusal;
};

/// SearchCounts counts the layouts of a search by their outcome.
struct SearchCounts {
  /// Layouts whose numbers are consistent, those of them that were tried before the time was over,
  /// those that `ftrun plan` would refuse, and legal ones.
  int64_t all = 0;
  int64_t tried = 0;
  int64_t refused = 0;
  int64_t legal = 0;
  /// Calls of the checks, also for made-up layouts; their results judge all layouts (LayoutRules).
  int64_t asked = 0;
  /// Legal layouts that need too much memory by their bounds, that were planned exactly, and whose
  /// bounds exceed the time that was found.
  int64_t too_large = 0;
  int64_t planned = 0;
  int64_t pruned = 0;
  /// Planned layouts that fit, but for whose time the machine lacks a rate.
  int64_t untimed = 0;
};

/// SearchResult holds what a search has found.
struct SearchResult {
  SearchCounts counts;
  /// Layouts that fit and were planned exactly, the fastest first.
  std::vector<Evaluation> choices;
  /// No layout can take less than the first choice: all bounds were computed, and no remaining one
  /// is lower.
  bool proved = false;
  /// The least seconds that any other layout could take; meaningless where the result is proved.
  double least = 0;
  std::vector<WhyNot> why_not;
  /// The layout that needs least where nothing fits, and the first one that fits on more nodes,
  /// with their number.
  std::optional<Evaluation> nearest;
  std::optional<Evaluation> on_more_nodes;
  int64_t more_nodes = 0;
  /// The number of nodes at which the time was over while more were looked at; 0: it was not.
  int64_t nodes_left = 0;
  /// The first refusal, and why a layout could not be timed.
  std::string refusal;
  std::string problem;
};

/// Searches the fastest layout that fits: bounds of all legal layouts, then exact plans, in the
/// order of their bounds, until none left can be faster. `limits` end it earlier; the result says
/// how much better another layout could be. For equal times the simpler layout wins.
SearchResult search_layouts(const SearchTask& task, const SearchLimits& limits);

}  // namespace ftrun
