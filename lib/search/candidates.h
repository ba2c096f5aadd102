#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "search/bound.h"
#include "search/layout.h"
#include "search/plan_layout.h"
#include "search/search_task.h"

namespace ftrun {

/// Candidate is an allowed layout of a search, with its bounds.
struct Candidate {
  Layout layout;
  LayoutBound bound;
  /// Says whether the layout may fit: its lower bound on memory does.
  bool may_fit = false;
};

/// Candidates holds the allowed layouts of a search, and what is known of them by full plans. A
/// candidate is identified by its number, which is known once all are added and sorted.
class Candidates {
 public:
  /// The step time of the best layout if no planned layout fits, or none has a known time.
  static constexpr double kUnknownTime = std::numeric_limits<double>::infinity();

  /// Makes an object without candidates. `task` must outlive it.
  explicit Candidates(const SearchTask& task) : task_(task) {}

  void add(Candidate candidate) { candidates_.push_back(std::move(candidate)); }
  /// Sorts the candidates by their bounds on time, and so gives them their numbers.
  void sort_by_bound();
  size_t size() const { return candidates_.size(); }
  const Candidate& at(size_t number) const { return candidates_[number]; }
  /// Lists the candidates whose layouts `matches` accepts.
  std::vector<size_t> list_matching(const std::function<bool(const Layout&)>& matches) const;

  /// Records the result of a full plan.
  void add_planned(size_t number, PlannedLayout found);
  /// Records that a full plan was stopped.
  void add_stopped(size_t number) { stopped_.insert(number); }
  size_t planned_count() const { return planned_.size(); }
  size_t stopped_count() const { return stopped_.size(); }
  bool is_planned(size_t number) const { return planned_.contains(number); }
  bool is_attempted(size_t number) const {
    return planned_.contains(number) || stopped_.contains(number);
  }

  /// Returns the least time of the planned layouts that fit.
  double best_seconds() const { return best_seconds_; }
  /// Returns whether a candidate that is not planned may be faster than the planned layouts.
  bool may_be_faster(size_t number) const;
  /// Counts the candidates that fit by their bounds and were never planned, because they cannot be
  /// faster than the best layout.
  int64_t count_pruned() const;
  /// Lists the planned layouts that fit by time, and equally fast ones by complexity.
  std::vector<PlannedLayout> ranking() const;

  /// Returns the estimate_planning_effort() of a candidate.
  double effort_of(size_t number) const {
    return estimate_planning_effort(task_, candidates_[number].layout);
  }
  /// Returns the one of these candidates whose full plan takes the least time.
  size_t fastest_to_plan(const std::vector<size_t>& numbers) const;
  /// Returns whether the layout probably needs too much memory, because it equals a layout that was
  /// too large except for settings that need more memory: larger micro-batches, less recompute, a
  /// lower ZeRO stage, fewer shards.
  bool is_probably_too_large(const Layout& layout) const;

  /// Returns the fastest of these candidates that fits according to full plans or, if none fits,
  /// the one that needs the least memory.
  std::optional<PlannedLayout> best_of(const std::vector<size_t>& numbers) const;
  /// Returns whether one of these candidates fits according to its full plan, which has a time.
  bool has_fitting(const std::vector<size_t>& numbers) const {
    return find_best(numbers, true) != nullptr;
  }

  /// Lists the candidates that need the least memory according to their bounds, except those that
  /// are already planned.
  std::vector<size_t> list_unplanned_of_least_memory() const;
  /// Returns the planned layout that needs the least memory; nothing if none could be planned.
  std::optional<PlannedLayout> find_planned_of_least_memory() const;

 private:
  const PlannedLayout* find_best(const std::vector<size_t>& numbers, bool fitting) const;
  std::pair<int64_t, int64_t> memory_sort_key(const Layout& layout, const MemoryNeed& memory) const;
  std::pair<int64_t, int64_t> memory_sort_key(const Candidate& one) const {
    return memory_sort_key(one.layout, one.bound.memory);
  }
  std::pair<int64_t, int64_t> memory_sort_key(const PlannedLayout& one) const {
    return memory_sort_key(one.layout, one.memory);
  }

  const SearchTask& task_;
  std::vector<Candidate> candidates_;
  /// Results of full plans, by number.
  std::map<size_t, PlannedLayout> planned_;
  /// Candidates whose full plans were stopped.
  std::set<size_t> stopped_;
  /// Planned layouts that need more memory than there is.
  std::vector<Layout> too_large_;
  double best_seconds_ = kUnknownTime;
};

}  // namespace ftrun
