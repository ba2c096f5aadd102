#include "search/search.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/cores.h"
#include "base/error.h"
#include "base/run_in_parallel.h"
#include "search/bound.h"
#include "search/candidates.h"
#include "search/enumerate.h"
#include "search/layout_rules.h"
#include "search/node_ranks.h"
#include "search/time_budget.h"

namespace ftrun {
namespace {

/// The share of the search time after which no more full plans of the best layouts are made. The
/// rest is for the comparison with common settings.
constexpr double kPlanningShare = 0.85;
/// The search stops after this many plans without a time, because the machine file lacks a rate.
constexpr size_t kMaxUntimed = 16;
/// The maximum number of layouts that are checked and bounded between two reads of the clock. There
/// are fewer if they need the costs of more models than there are cores.
constexpr size_t kCheckedTogether = 256;
/// The number of full plans that are computed concurrently. Each of them starts as many threads as
/// there are cores (RankClassPlans, predict_step()).
constexpr size_t kPlannedTogether = 2;
/// Full plans of a common setting until one of them fits.
constexpr int kPlansOfSetting = 2;
/// The largest number of nodes that is checked if nothing fits.
constexpr int64_t kMaxNodes = 4096;

/// PlanOrder chooses which candidates of a search are planned next.
class PlanOrder {
 public:
  /// Makes the order of candidates that are sorted by their bounds. `candidates` must outlive it.
  explicit PlanOrder(const Candidates& candidates)
      : candidates_(candidates), by_bound_(candidates.size()) {
    std::iota(by_bound_.begin(), by_bound_.end(), size_t{0});
    by_estimate_ = by_bound_;
    std::stable_sort(by_estimate_.begin(), by_estimate_.end(), [&](size_t a, size_t b) {
      return candidates.at(a).bound.unoverlapped_seconds <
             candidates.at(b).bound.unoverlapped_seconds;
    });
  }

  /// Lists the candidates that are planned next: the one with the lowest bound and the one with the
  /// lowest estimate, if their plans end in time together. A layout that is probably too large is
  /// planned only if no other is left.
  std::vector<size_t> next(const TimeBudget& time) const {
    std::vector<size_t> numbers = list_next(time, false);
    if (numbers.empty()) numbers = list_next(time, true);
    return numbers;
  }

  /// Lists the candidates that may be faster than all planned ones, by their bounds.
  std::vector<size_t> list_faster() const {
    std::vector<size_t> numbers = by_bound_;
    std::erase_if(numbers, [&](size_t i) { return !candidates_.may_be_faster(i); });
    return numbers;
  }
  /// Returns the first of list_faster(); nothing if there is none.
  std::optional<size_t> find_lowest_bound() const {
    return find_first(by_bound_, [](size_t) { return true; });
  }

 private:
  /// Returns the first wanted candidate of an order that may be faster than all planned ones.
  template <class IsWanted>
  std::optional<size_t> find_first(const std::vector<size_t>& order,
                                   const IsWanted& is_wanted) const {
    const auto found = std::find_if(order.begin(), order.end(), [&](size_t i) {
      return candidates_.may_be_faster(i) && is_wanted(i);
    });
    return found == order.end() ? std::nullopt : std::optional(*found);
  }

  /// Lists what next() does; layouts that are probably too large only if `includes_too_large`.
  std::vector<size_t> list_next(const TimeBudget& time, bool includes_too_large) const {
    std::vector<size_t> numbers;
    double effort = 0;
    const auto is_wanted = [&](size_t i) {
      if (candidates_.is_attempted(i)) return false;
      const double added = numbers.empty() || numbers.front() != i ? candidates_.effort_of(i) : 0;
      return time.ends_in_time(effort + added) &&
             (includes_too_large || !candidates_.is_probably_too_large(candidates_.at(i).layout));
    };
    for (const auto* order : {&by_bound_, &by_estimate_}) {
      const auto found = find_first(*order, is_wanted);
      if (!found || (!numbers.empty() && numbers.front() == *found)) continue;
      numbers.push_back(*found);
      effort += candidates_.effort_of(*found);
    }
    return numbers;
  }

  const Candidates& candidates_;
  /// All candidates by their lower bounds on time, and by their estimated times.
  std::vector<size_t> by_bound_;
  std::vector<size_t> by_estimate_;
};

/// Search runs one search: it computes bounds, then full plans.
class Search {
 public:
  Search(const SearchTask& task, const SearchLimits& limits, const TimeBudget& time)
      : task_(task),
        limits_(limits),
        time_(time),
        layouts_(list_layouts(task)),
        settings_(task, layouts_),
        candidates_(task) {
    result_.counts.all = static_cast<int64_t>(layouts_.size());
  }

  SearchResult run() {
    find_bounds();
    plan_best();
    // The time limit may have passed before the layouts that need the least memory were planned.
    if (!has_timed_layout() && !result_.is_proved)
      plan_in_time(candidates_.list_unplanned_of_least_memory(), true);
    // A stopped plan takes longer than estimated.
    result_.needed_seconds =
        candidates_.planned_count() == 0
            ? std::max(result_.needed_seconds,
                       candidates_.stopped_count() == 0 ? 0 : 2 * time_.elapsed_seconds())
            : 0;
    if (!has_timed_layout() && result_.untimed_reason.empty() && result_.counts.allowed > 0) {
      find_least_memory();
    } else {
      plan_common_settings();
      result_.ranking = candidates_.ranking();
      result_.common_settings = settings_.compare(candidates_, result_.ranking);
    }
    result_.counts.stopped = static_cast<int64_t>(candidates_.stopped_count());
    result_.counts.pruned = candidates_.count_pruned();
    return std::move(result_);
  }

 private:
  /// Returns whether a planned layout fits and has a known time.
  bool has_timed_layout() const { return candidates_.best_seconds() != Candidates::kUnknownTime; }

  /// Plans the cheapest of these candidates if nothing was planned before, even if that ends a
  /// little late: a plan of some layout says more than bounds of all.
  void plan_cheapest(const std::vector<size_t>& numbers, bool timed) {
    if (numbers.empty() || candidates_.planned_count() > 0 || candidates_.stopped_count() > 0)
      return;
    const size_t cheapest = candidates_.fastest_to_plan(numbers);
    result_.needed_seconds = time_.estimate_end_seconds(candidates_.effort_of(cheapest));
    if (time_.allows_first_plan_until(result_.needed_seconds)) plan({cheapest}, timed);
  }

  void record_refusal(const Layout& layout, const std::string& reason) {
    ++result_.counts.refused;
    if (result_.refusal.empty()) result_.refusal = reason;
    settings_.add_refusal(layout, reason);
  }

  /// Computes the bounds of all allowed layouts, until the time for bounds is over.
  void find_bounds() {
    LayoutRules rules(task_);
    BoundCalculator bounds(task_);
    const auto models_together = static_cast<size_t>(count_usable_cores());
    size_t checked = 0;
    while (checked < layouts_.size() && (checked == 0 || !time_.has_spent_bounds_time())) {
      std::vector<Layout> allowed;
      std::vector<const StateProperties*> properties;
      BoundCalculator::MissingModels models;
      const size_t end = std::min(checked + kCheckedTogether, layouts_.size());
      for (; checked < end && models.size() < models_together; ++checked) {
        const Layout& layout = layouts_[checked];
        const LayoutRules::Judgement judgement = rules.judge(layout);
        if (judgement.refusal != nullptr) {
          record_refusal(layout, *judgement.refusal);
          continue;
        }
        bounds.add_missing_model(layout, models);
        allowed.push_back(layout);
        properties.push_back(judgement.properties);
      }
      bounds.compute_costs(models);
      for (size_t i = 0; i < allowed.size(); ++i) add_candidate(allowed[i], *properties[i], bounds);
    }
    result_.counts.checked = static_cast<int64_t>(checked);
    result_.counts.resolved_layouts = rules.resolved_layouts();
    candidates_.sort_by_bound();
  }

  void add_candidate(const Layout& layout, const StateProperties& properties,
                     BoundCalculator& bounds) {
    Candidate candidate{layout, {}, false};
    try {
      candidate.bound = bounds.compute_bound(layout, properties);
    } catch (const Error& error) {
      if (error.code() == ExitCode::kBug) throw;
      return record_refusal(layout, error.message());
    }
    candidate.may_fit =
        fits_memory(task_, candidate.bound.memory, ranks_per_node(layout, task_.nodes));
    ++result_.counts.allowed;
    if (!candidate.may_fit) ++result_.counts.too_large;
    candidates_.add(std::move(candidate));
  }

  /// Plans a layout fully; returns nothing if the time limit passes before. A layout that cannot be
  /// planned counts as one that does not fit.
  std::optional<PlannedLayout> plan_before_deadline(const Layout& layout, bool timed) const {
    try {
      return plan_layout(task_, layout, timed, time_.deadline());
    } catch (const PlanDeadlineExceeded&) {
      return std::nullopt;
    } catch (const Error& error) {
      if (error.code() == ExitCode::kBug) throw;
      return PlannedLayout{.layout = layout, .failure = error.what()};
    }
  }

  /// Plans each of these candidates fully if its plan ends in time, kPlannedTogether at a time.
  /// If nothing is planned yet and plans may be late, the cheapest of them may end a little late.
  void plan_in_time(const std::vector<size_t>& numbers, bool timed) {
    std::vector<size_t> some;
    double effort = 0;
    for (const size_t i : numbers) {
      if (candidates_.is_attempted(i)) continue;
      const double own = candidates_.effort_of(i);
      if (!time_.ends_in_time(effort + own)) continue;
      some.push_back(i);
      effort += own;
      if (some.size() < kPlannedTogether) continue;
      plan(std::exchange(some, {}), timed);
      effort = 0;
    }
    if (!some.empty()) plan(some, timed);
    if (time_.allows_late_first_plan()) plan_cheapest(numbers, timed);
  }

  /// Plans candidates fully and concurrently. None of them may have been planned before.
  void plan(const std::vector<size_t>& numbers, bool timed = true) {
    const double before = time_.elapsed_seconds();
    std::vector<std::optional<PlannedLayout>> found(numbers.size());
    run_in_parallel(
        numbers.size(),
        [&](size_t i) {
          found[i] = plan_before_deadline(candidates_.at(numbers[i]).layout, timed);
        },
        kPlannedTogether);
    time_.add_plan_seconds(time_.elapsed_seconds() - before);
    for (size_t i = 0; i < numbers.size(); ++i) {
      time_.add_plan_effort(candidates_.effort_of(numbers[i]));
      if (found[i])
        add_planned(numbers[i], std::move(*found[i]), timed);
      else
        candidates_.add_stopped(numbers[i]);
    }
  }

  void add_planned(size_t number, PlannedLayout found, bool timed) {
    ++result_.counts.planned;
    if (found.fits && !found.time && timed) {
      ++result_.counts.untimed;
      if (result_.untimed_reason.empty()) result_.untimed_reason = found.failure;
    }
    candidates_.add_planned(number, std::move(found));
  }

  /// Plans layouts fully until no other layout can be faster, in the order of PlanOrder.
  void plan_best() {
    const PlanOrder order(candidates_);
    while (!time_.has_spent_share(kPlanningShare)) {
      // The machine lacks a rate that all layouts need.
      if (!result_.untimed_reason.empty() && candidates_.planned_count() >= kMaxUntimed &&
          !has_timed_layout())
        break;
      const std::vector<size_t> numbers = order.next(time_);
      if (numbers.empty()) break;
      plan(numbers);
    }
    if (candidates_.planned_count() == 0) plan_cheapest(order.list_faster(), true);
    const std::optional<size_t> left = order.find_lowest_bound();
    result_.min_other_seconds =
        left ? candidates_.at(*left).bound.seconds : candidates_.best_seconds();
    result_.is_proved =
        !left && result_.counts.checked == result_.counts.all && result_.counts.untimed == 0;
  }

  /// Plans layouts of each common setting until one fits. If the search time ended early, one of
  /// these layouts may be faster than all layouts planned before.
  void plan_common_settings() {
    for (const CommonSetting& setting : settings_.all())
      plan_common_setting(candidates_.list_matching(setting.matches));
  }

  /// Plans the candidates with the lowest bounds on time, and then the one with the lowest bound on
  /// memory, until one fits.
  void plan_common_setting(const std::vector<size_t>& numbers) {
    int tries = 0;
    std::optional<size_t> least;
    for (const size_t i : numbers) {
      if (!candidates_.at(i).may_fit || candidates_.is_attempted(i)) continue;
      if (candidates_.has_fitting(numbers) || time_.has_spent_share(1)) return;
      if (!time_.ends_in_time(candidates_.effort_of(i))) continue;
      if (tries++ < kPlansOfSetting) {
        plan({i});
      } else if (!least || candidates_.at(i).bound.memory.device_bytes <
                               candidates_.at(*least).bound.memory.device_bytes) {
        least = i;
      }
    }
    if (least && !candidates_.has_fitting(numbers) &&
        time_.ends_in_time(candidates_.effort_of(*least)))
      plan({*least});
  }

  /// Plans the layouts that need the least memory according to their bounds, then searches for a
  /// sufficient number of nodes.
  void find_least_memory() {
    result_.least_memory = plan_least_memory();
    if (result_.least_memory && limits_.tries_more_nodes) search_more_nodes();
  }

  std::optional<PlannedLayout> plan_least_memory() {
    plan_in_time(candidates_.list_unplanned_of_least_memory(), false);
    return candidates_.find_planned_of_least_memory();
  }

  /// Notes that the time ended before all layouts on this number of nodes were searched. The
  /// smallest such number is kept.
  void record_unchecked_nodes(int64_t nodes) {
    if (result_.first_unchecked_nodes == 0) result_.first_unchecked_nodes = nodes;
  }

  /// Doubles the number of nodes until a layout fits or the time is over.
  void search_more_nodes() {
    SearchTask larger = task_;
    for (larger.nodes *= 2; larger.nodes <= kMaxNodes; larger.nodes *= 2) {
      const double left = time_.remaining_seconds();
      if (left <= 0) return record_unchecked_nodes(larger.nodes);
      Search search(larger, {.seconds = left}, time_.budget_for_more_nodes(left));
      search.find_bounds();
      const SearchCounts& counts = search.result_.counts;
      // If even the bounds of all checked layouts are too large, none of them fits.
      if (counts.allowed > counts.too_large) {
        const std::optional<PlannedLayout> found = search.plan_least_memory();
        time_.copy_plan_times(search.time_);
        if (found && found->fits) {
          result_.fit_on_more_nodes = found;
          result_.sufficient_nodes = larger.nodes;
          return;
        }
        if (counts.planned == 0) return record_unchecked_nodes(larger.nodes);
      }
      // The simplest layouts are checked first. A later one, which has more shards, may fit.
      if (counts.checked < counts.all) record_unchecked_nodes(larger.nodes);
    }
  }

  const SearchTask& task_;
  const SearchLimits limits_;
  TimeBudget time_;
  const std::vector<Layout> layouts_;
  CommonSettings settings_;
  Candidates candidates_;
  SearchResult result_;
};

}  // namespace

SearchResult search_layouts(const SearchTask& task, const SearchLimits& limits) {
  return Search(task, limits, TimeBudget(limits.seconds)).run();
}

}  // namespace ftrun
