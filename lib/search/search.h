#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "search/common_settings.h"
#include "search/plan_layout.h"
#include "search/search_task.h"

namespace ftrun {

/// SearchLimits can end a search before it has proved its result.
struct SearchLimits {
  /// The seconds after which no new work is begun. Even with very few seconds some layouts are
  /// bounded. A full plan is begun only if its estimate says that it ends in time. If no plan
  /// does, the cheapest plan is begun if it ends at most a second late. A plan that still runs a
  /// second after the limit is stopped.
  double seconds = 10;
  /// Says whether the search looks for a sufficient number of nodes if nothing fits.
  bool tries_more_nodes = true;
};

/// SearchCounts counts the layouts of a search by their outcome.
struct SearchCounts {
  /// all: layouts whose numbers are consistent. checked: layouts that were checked before the time
  /// was over. refused: layouts that `ftrun plan` would refuse. allowed: all other checked layouts.
  int64_t all = 0;
  int64_t checked = 0;
  int64_t refused = 0;
  int64_t allowed = 0;
  /// The number of calls of resolve_layout(), including calls for layouts that only test one
  /// aspect. From their results the search decides which layouts are allowed (LayoutRules).
  int64_t resolved_layouts = 0;
  /// too_large: allowed layouts that need too much memory according to their bounds. planned:
  /// layouts that were fully planned. pruned: layouts that were not planned because their bound is
  /// no less than the best time found.
  int64_t too_large = 0;
  int64_t planned = 0;
  int64_t pruned = 0;
  /// The number of full plans that were stopped because the time limit had passed.
  int64_t stopped = 0;
  /// The number of planned layouts that fit, but for whose time the machine lacks a rate.
  int64_t untimed = 0;
};

/// SearchResult holds the result of a search.
struct SearchResult {
  SearchCounts counts;
  /// Layouts that fit and were fully planned, the fastest first.
  std::vector<PlannedLayout> ranking;
  /// Says whether no layout can be faster than the first of `ranking`: all bounds were computed,
  /// and no layout that was not planned has a lower bound.
  bool is_proved = false;
  /// The minimum seconds that any other layout with a known bound could take. It says nothing of
  /// layouts that were not checked (SearchCounts) or could not be timed.
  double min_other_seconds = 0;
  std::vector<CommonSettingComparison> common_settings;
  /// The layout that needs the least memory, set if nothing fits; and the first layout that fits on
  /// more nodes, with their number.
  std::optional<PlannedLayout> least_memory;
  std::optional<PlannedLayout> fit_on_more_nodes;
  int64_t sufficient_nodes = 0;
  /// The smallest number of nodes whose layouts were not all checked because the time ended; 0 if
  /// there is none. It is less than `sufficient_nodes`, unless that is 0.
  int64_t first_unchecked_nodes = 0;
  /// The seconds that a search probably needs to plan one layout fully; only where it planned
  /// none in its time.
  double needed_seconds = 0;
  /// The first refusal, and the reason why the time of a layout that fits is not known.
  std::string refusal;
  std::string untimed_reason;
};

/// Searches for the fastest layout that fits. It computes the bounds of all allowed layouts, then
/// full plans in the order of the bounds, until no remaining layout can be faster. If `limits` end
/// the search earlier, the result says how fast another layout could be. Among equally fast layouts
/// the simplest is chosen.
SearchResult search_layouts(const SearchTask& task, const SearchLimits& limits);

}  // namespace ftrun
