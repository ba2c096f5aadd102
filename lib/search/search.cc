#include "search/search.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/run_in_parallel.h"
#include "search/enumerate.h"
#include "search/layout_rules.h"
#include "search/node_ranks.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

/// The share of the search time after which no more bounds are computed, and the share after which
/// no more exact plans of the best layouts are made. The rest is for the comparison with plain
/// choices.
constexpr double kBoundsShare = 0.5;
constexpr double kExactShare = 0.85;
/// The share of the search time for each larger number of nodes that is tried if nothing fits.
constexpr double kNodesShare = 0.2;
/// The step time if it is unknown.
constexpr double kUnknownTime = std::numeric_limits<double>::infinity();
/// The search stops after this many plans without a time, because the machine file lacks a rate.
constexpr size_t kMaxUntimed = 16;
/// The maximum number of layouts that are checked and bounded between two reads of the clock. There
/// are fewer if they need the costs of more models than there are cores.
constexpr size_t kTriedTogether = 256;
/// The number of exact plans that are computed concurrently. Each of them starts as many threads as
/// there are cores (ClassPlans, predict_step()).
constexpr size_t kPlannedTogether = 2;
/// The seconds that the first exact plan may take beyond the time of the search.
constexpr double kGraceSeconds = 1;
/// The seconds that an exact plan takes for each unit of plan_effort(), while none is measured, and
/// how much longer than measured it may take.
constexpr double kSecondsOfEffort = 10e-6;
constexpr double kEffortMargin = 1.3;
/// Exact plans of a plain choice until one of them fits, and of the layouts that need the least
/// memory.
constexpr int kTriesOfChoice = 2;
constexpr size_t kLeastMemoryPlans = 4;
/// The largest number of nodes that is tried if nothing fits.
constexpr int64_t kMaxNodes = 4096;

struct Candidate {
  Layout layout;
  Bound bound;
  bool fits = false;
};

/// PlainChoice is a simple setting that a user might choose ("ZeRO 1", "tensor 2"), and a test
/// whether a layout has it. Choices are in the order in which guides name them.
struct PlainChoice {
  std::string name;
  std::function<bool(const Layout&)> matches;
};

bool is_data_parallel(const Layout& layout) {
  return layout.tensor == 1 && layout.pipeline == 1 && layout.replicas == 1;
}
bool offloads(const Layout& layout) {
  return layout.optimizer_offload != OffloadDevice::kNone ||
         layout.parameter_offload != OffloadDevice::kNone;
}
bool recomputes(const Layout& layout) {
  return layout.recompute != RecomputeLevel::kNone;
}

std::vector<PlainChoice> plain_choices(const std::vector<Layout>& layouts) {
  std::vector<PlainChoice> choices;
  for (int64_t zero = 0; zero <= 3; ++zero)
    choices.push_back({zero == 0 ? "ZeRO 0, plain data parallelism" : cat("ZeRO ", zero),
                       [zero](const Layout& one) {
                         return one.zero == zero && is_data_parallel(one) && !offloads(one) &&
                                !recomputes(one);
                       }});
  std::set<int64_t> tensors, pipelines;
  for (const Layout& layout : layouts) {
    if (layout.tensor > 1) tensors.insert(layout.tensor);
    if (layout.pipeline > 1) pipelines.insert(layout.pipeline);
  }
  for (const int64_t degree : tensors)
    choices.push_back({cat("tensor ", degree), [degree](const Layout& one) {
                         return one.tensor == degree && one.pipeline == 1 && !offloads(one) &&
                                !recomputes(one);
                       }});
  for (const int64_t degree : pipelines)
    choices.push_back({cat("pipeline ", degree), [degree](const Layout& one) {
                         return one.pipeline == degree && one.tensor == 1 && !offloads(one) &&
                                !recomputes(one);
                       }});
  choices.push_back({"offload of the optimizer", [](const Layout& one) {
                       return one.optimizer_offload == OffloadDevice::kCpu &&
                              one.parameter_offload == OffloadDevice::kNone &&
                              is_data_parallel(one) && !recomputes(one);
                     }});
  for (const RecomputeLevel level : {RecomputeLevel::kSelective, RecomputeLevel::kFull})
    choices.push_back({cat("recompute ", name_of(level)), [level](const Layout& one) {
                         return one.recompute == level && is_data_parallel(one) && !offloads(one);
                       }});
  return choices;
}

/// Search runs one search: it computes bounds, then exact plans.
class Search {
 public:
  Search(const SearchTask& task, const SearchLimits& limits)
      : task_(task),
        limits_(limits),
        begin_(Clock::now()),
        layouts_(all_layouts(task)),
        choices_(plain_choices(layouts_)),
        refusals_(choices_.size()),
        bounds_seconds_(kBoundsShare * limits.seconds) {
    result_.counts.all = static_cast<int64_t>(layouts_.size());
  }

  SearchResult run() {
    find_bounds();
    plan_best();
    // The time limit may have passed before the layouts that need the least memory were planned.
    if (best_seconds_ == kUnknownTime && !result_.proved)
      plan_in_time(least_memory_numbers(), true);
    // An abandoned plan takes longer than estimated.
    result_.needed_seconds =
        exact_.empty()
            ? std::max(result_.needed_seconds, abandoned_.empty() ? 0 : 2 * elapsed_seconds())
            : 0;
    if (best_seconds_ == kUnknownTime && result_.untimed_reason.empty() &&
        result_.counts.legal > 0) {
      find_least_memory();
    } else {
      plan_choices();
      rank_planned();
      explain_choices();
    }
    count_unplanned();
    return std::move(result_);
  }

 private:
  double elapsed_seconds() const { return seconds_since(begin_); }

  bool bounds_time_is_over() const { return elapsed_seconds() > bounds_seconds_; }

  bool has_used(double share) const { return elapsed_seconds() > share * limits_.seconds; }

  double effort_of(size_t number) const { return plan_effort(task_, candidates_[number].layout); }

  /// Estimates the seconds of concurrent exact plans, whose efforts add up to `effort`, by those
  /// that were planned before.
  double plan_seconds(double effort) const {
    return effort * (planned_effort_ > 0 ? kEffortMargin * planned_seconds_ / planned_effort_
                                         : kSecondsOfEffort);
  }

  /// Returns whether exact plans of this effort that begin now probably end within the search's
  /// time.
  bool ends_in_time(double effort) const {
    return elapsed_seconds() + plan_seconds(effort) <= limits_.seconds;
  }

  bool is_tried(size_t number) const {
    return exact_.contains(number) || abandoned_.contains(number);
  }

  /// Returns the one of these candidates whose exact plan takes the least time.
  size_t cheapest_of(const std::vector<size_t>& numbers) const {
    return *std::min_element(numbers.begin(), numbers.end(),
                             [&](size_t a, size_t b) { return effort_of(a) < effort_of(b); });
  }

  /// Plans the cheapest of these candidates if nothing was planned before, even if that ends a
  /// little late: a plan of some layout says more than bounds of all.
  void plan_first(const std::vector<size_t>& numbers, bool timed) {
    if (numbers.empty() || !exact_.empty() || !abandoned_.empty()) return;
    const size_t cheapest = cheapest_of(numbers);
    result_.needed_seconds = elapsed_seconds() + plan_seconds(effort_of(cheapest));
    if (result_.needed_seconds <= limits_.seconds + kGraceSeconds) plan({cheapest}, timed);
  }

  void refuse(const Layout& layout, const std::string& why) {
    ++result_.counts.refused;
    if (result_.refusal.empty()) result_.refusal = why;
    for (size_t c = 0; c < choices_.size(); ++c)
      if (refusals_[c].empty() && choices_[c].matches(layout)) refusals_[c] = why;
  }

  /// Computes the bounds of all legal layouts, until the time for bounds is over.
  void find_bounds() {
    LayoutRules rules(task_);
    BoundCalculator bounds(task_);
    const auto models_together = static_cast<size_t>(usable_cores());
    size_t tried = 0;
    while (tried < layouts_.size() && (tried == 0 || !bounds_time_is_over())) {
      std::vector<Layout> legal;
      std::vector<const StateFacts*> facts;
      BoundCalculator::MissingModels models;
      const size_t end = std::min(tried + kTriedTogether, layouts_.size());
      for (; tried < end && models.size() < models_together; ++tried) {
        const Layout& layout = layouts_[tried];
        const LayoutRules::Verdict verdict = rules.verdict_of(layout);
        if (verdict.refusal != nullptr) {
          refuse(layout, *verdict.refusal);
          continue;
        }
        bounds.add_missing_model(layout, models);
        legal.push_back(layout);
        facts.push_back(verdict.facts);
      }
      bounds.compute_costs(models);
      for (size_t i = 0; i < legal.size(); ++i) add_candidate(legal[i], *facts[i], bounds);
    }
    result_.counts.tried = static_cast<int64_t>(tried);
    result_.counts.try_calls = rules.try_calls();
    std::stable_sort(
        candidates_.begin(), candidates_.end(),
        [](const Candidate& a, const Candidate& b) { return a.bound.seconds < b.bound.seconds; });
  }

  void add_candidate(const Layout& layout, const StateFacts& facts, BoundCalculator& bounds) {
    Candidate candidate{layout, {}, false};
    try {
      candidate.bound = bounds.compute_bound(layout, facts);
    } catch (const Error& error) {
      if (error.code() == ExitCode::kBug) throw;
      return refuse(layout, error.message());
    }
    candidate.fits =
        fits_memory(task_, candidate.bound.memory, ranks_per_node(layout, task_.nodes));
    ++result_.counts.legal;
    if (!candidate.fits) ++result_.counts.too_large;
    candidates_.push_back(std::move(candidate));
  }

  /// Returns the time at which exact plans are abandoned.
  Clock::time_point deadline() const {
    const double max_seconds = std::max(limits_.seconds, 0.0) + kGraceSeconds;
    return begin_ +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(max_seconds));
  }

  /// Evaluates a layout exactly; nothing if the time limit passes before. A layout that cannot be
  /// planned counts as one that does not fit.
  std::optional<Evaluation> plan_layout(const Layout& layout, bool timed) const {
    try {
      return evaluate(task_, layout, timed, deadline());
    } catch (const PlanDeadlineExceeded&) {
      return std::nullopt;
    } catch (const Error& error) {
      if (error.code() == ExitCode::kBug) throw;
      return Evaluation{.layout = layout, .failure = error.what()};
    }
  }

  /// Plans each of these candidates exactly if its plan ends in time, kPlannedTogether at a time.
  /// If nothing is planned yet and may_plan_late_ is set, the cheapest of them may end a little
  /// late.
  void plan_in_time(const std::vector<size_t>& numbers, bool timed) {
    std::vector<size_t> some;
    double effort = 0;
    for (const size_t i : numbers) {
      if (is_tried(i) || !ends_in_time(effort + effort_of(i))) continue;
      some.push_back(i);
      effort += effort_of(i);
      if (some.size() < kPlannedTogether) continue;
      plan(std::exchange(some, {}), timed);
      effort = 0;
    }
    if (!some.empty()) plan(some, timed);
    if (may_plan_late_) plan_first(numbers, timed);
  }

  /// Plans candidates exactly and concurrently. None of them may have been planned before.
  void plan(const std::vector<size_t>& numbers, bool timed = true) {
    const double before = elapsed_seconds();
    std::vector<std::optional<Evaluation>> found(numbers.size());
    run_in_parallel(
        numbers.size(),
        [&](size_t i) { found[i] = plan_layout(candidates_[numbers[i]].layout, timed); },
        kPlannedTogether);
    planned_seconds_ += elapsed_seconds() - before;
    for (size_t i = 0; i < numbers.size(); ++i) {
      planned_effort_ += effort_of(numbers[i]);
      if (found[i])
        add_planned(numbers[i], std::move(*found[i]), timed);
      else
        abandoned_.insert(numbers[i]);
    }
  }

  void add_planned(size_t number, Evaluation found, bool timed) {
    ++result_.counts.planned;
    if (found.fits && !found.time && timed) {
      ++result_.counts.untimed;
      if (result_.untimed_reason.empty()) result_.untimed_reason = found.failure;
    }
    if (found.is_ranked()) best_seconds_ = std::min(best_seconds_, found.time->seconds);
    if (!found.fits) too_large_.push_back(found.layout);
    exact_.emplace(number, std::move(found));
  }

  /// Plans layouts exactly until no other layout can be faster. Each round plans the layout with
  /// the lowest bound and the layout with the lowest estimate. Layouts that are probably too large
  /// are planned last.
  void plan_best() {
    std::vector<size_t> by_bound(candidates_.size());
    std::iota(by_bound.begin(), by_bound.end(), size_t{0});
    std::vector<size_t> by_guess = by_bound;
    std::stable_sort(by_guess.begin(), by_guess.end(), [&](size_t a, size_t b) {
      return candidates_[a].bound.seconds_without_overlap <
             candidates_[b].bound.seconds_without_overlap;
    });
    const auto may_win = [&](size_t i) {
      return candidates_[i].fits && candidates_[i].bound.seconds < best_seconds_ &&
             !exact_.contains(i);
    };
    const auto first_of = [&](const std::vector<size_t>& order, const auto& is_wanted) {
      const auto found = std::find_if(order.begin(), order.end(),
                                      [&](size_t i) { return may_win(i) && is_wanted(i); });
      return found == order.end() ? std::nullopt : std::optional(*found);
    };
    // Finds the first layout by each order, of those whose plans end in time together.
    const auto first_ones = [&](bool likely_too) {
      std::vector<size_t> numbers;
      double effort = 0;
      const auto is_wanted = [&](size_t i) {
        if (is_tried(i)) return false;
        const double added = numbers.empty() || numbers.front() != i ? effort_of(i) : 0;
        return ends_in_time(effort + added) &&
               (likely_too || !is_likely_large(candidates_[i].layout));
      };
      for (const auto* order : {&by_bound, &by_guess}) {
        const auto found = first_of(*order, is_wanted);
        if (!found || (!numbers.empty() && numbers.front() == *found)) continue;
        numbers.push_back(*found);
        effort += effort_of(*found);
      }
      return numbers;
    };
    while (!has_used(kExactShare)) {
      // The machine lacks a rate that all layouts need.
      if (!result_.untimed_reason.empty() && exact_.size() >= kMaxUntimed &&
          best_seconds_ == kUnknownTime)
        break;
      std::vector<size_t> numbers = first_ones(false);
      if (numbers.empty()) numbers = first_ones(true);
      if (numbers.empty()) break;
      plan(numbers);
    }
    if (exact_.empty()) {
      std::vector<size_t> fitting = by_bound;
      std::erase_if(fitting, [&](size_t i) { return !may_win(i); });
      plan_first(fitting, true);
    }
    const std::optional<size_t> left = first_of(by_bound, [](size_t) { return true; });
    result_.other_seconds_bound = left ? candidates_[*left].bound.seconds : best_seconds_;
    result_.proved =
        !left && result_.counts.tried == result_.counts.all && result_.counts.untimed == 0;
  }

  /// Counts the abandoned plans, and the candidates that fit by their bounds and were never
  /// planned, because they cannot be faster than the best layout.
  void count_unplanned() {
    result_.counts.abandoned = static_cast<int64_t>(abandoned_.size());
    for (size_t i = 0; i < candidates_.size(); ++i)
      if (candidates_[i].fits && !is_tried(i) && candidates_[i].bound.seconds >= best_seconds_)
        ++result_.counts.pruned;
  }

  /// Returns whether the layout probably needs too much memory, because it equals a layout that was
  /// too large except for settings that need more memory: larger micro-batches, less recompute, a
  /// lower ZeRO stage, fewer shards.
  bool is_likely_large(const Layout& layout) const {
    return std::any_of(too_large_.begin(), too_large_.end(), [&](const Layout& other) {
      return layout.ranks() == other.ranks() && layout.tensor == other.tensor &&
             layout.pipeline == other.pipeline && layout.schedule == other.schedule &&
             layout.chunks == other.chunks && layout.optimizer_offload == other.optimizer_offload &&
             layout.parameter_offload == other.parameter_offload &&
             layout.micro_batch >= other.micro_batch && layout.recompute <= other.recompute &&
             layout.zero <= other.zero && layout.shards() <= other.shards();
    });
  }

  /// Sorts the planned layouts that fit by time, and equally fast ones by complexity.
  void rank_planned() {
    for (const auto& [number, found] : exact_)
      if (found.is_ranked()) result_.ranking.push_back(found);
    std::stable_sort(result_.ranking.begin(), result_.ranking.end(),
                     [](const Evaluation& a, const Evaluation& b) {
                       return std::pair(a.time->seconds, complexity(a.layout)) <
                              std::pair(b.time->seconds, complexity(b.layout));
                     });
  }

  std::vector<size_t> candidates_of(const PlainChoice& choice) const {
    std::vector<size_t> numbers;
    for (size_t i = 0; i < candidates_.size(); ++i)
      if (choice.matches(candidates_[i].layout)) numbers.push_back(i);
    return numbers;
  }

  /// Plans layouts of each plain choice until one fits. If the search time ended early, one of
  /// these layouts may be faster than all layouts planned before.
  void plan_choices() {
    for (const PlainChoice& choice : choices_) plan_choice(candidates_of(choice));
  }

  void explain_choices() {
    for (size_t c = 0; c < choices_.size(); ++c) {
      PlainChoiceComparison why{.choice = choices_[c].name};
      const std::vector<size_t> legal = candidates_of(choices_[c]);
      if (legal.empty()) {
        why.refusal = refusals_[c];
        if (why.refusal.empty()) continue;  // no layout of this machine has the choice
      } else {
        why.is_chosen =
            !result_.ranking.empty() && choices_[c].matches(result_.ranking.front().layout);
        set_bound(legal, why);
        if (!why.is_chosen) why.best = best_of(legal);
      }
      result_.plain_choices.push_back(std::move(why));
    }
  }

  void set_bound(const std::vector<size_t>& numbers, PlainChoiceComparison& why) const {
    // Candidates are sorted by the bound on time, so the first one has the smallest bound.
    Bound least = candidates_[numbers.front()].bound;
    why.ranks = ranks_per_node(candidates_[numbers.front()].layout, task_.nodes);
    for (const size_t i : numbers) {
      const Candidate& one = candidates_[i];
      why.may_fit |= one.fits;
      if (one.bound.memory.device < least.memory.device) {
        least.memory.device = one.bound.memory.device;
        why.ranks = ranks_per_node(one.layout, task_.nodes);
      }
      least.memory.host = std::min(least.memory.host, one.bound.memory.host);
    }
    why.bound = least;
  }

  /// Plans the candidates with the lowest bounds on time, and then the one with the lowest bound on
  /// memory, until one fits.
  void plan_choice(const std::vector<size_t>& numbers) {
    int tries = 0;
    std::optional<size_t> least;
    for (const size_t i : numbers) {
      if (!candidates_[i].fits || is_tried(i)) continue;
      if (known_best(numbers, true) != nullptr || has_used(1)) return;
      if (!ends_in_time(effort_of(i))) continue;
      if (tries++ < kTriesOfChoice) {
        plan({i});
      } else if (!least ||
                 candidates_[i].bound.memory.device < candidates_[*least].bound.memory.device) {
        least = i;
      }
    }
    if (least && known_best(numbers, true) == nullptr && ends_in_time(effort_of(*least)))
      plan({*least});
  }

  /// Returns the fastest candidate that fits according to exact plans or, if none fits, the one
  /// that needs the least memory.
  std::optional<Evaluation> best_of(const std::vector<size_t>& numbers) const {
    for (const bool fitting : {true, false})
      if (const Evaluation* best = known_best(numbers, fitting)) return *best;
    return std::nullopt;
  }

  /// Returns whether `one` needs less device memory than `other`. A layout that could not be
  /// planned needs more than any other.
  static bool needs_less(const Evaluation& one, const Evaluation& other) {
    return std::pair(!one.has_memory(), one.memory.device) <
           std::pair(!other.has_memory(), other.memory.device);
  }

  const Evaluation* known_best(const std::vector<size_t>& numbers, bool fitting) const {
    const Evaluation* best = nullptr;
    for (const size_t i : numbers) {
      const auto found = exact_.find(i);
      if (found == exact_.end() || found->second.is_ranked() != fitting) continue;
      const Evaluation& one = found->second;
      const bool better = best == nullptr || (fitting ? one.time->seconds < best->time->seconds
                                                      : needs_less(one, *best));
      if (better) best = &one;
    }
    return best;
  }

  /// Plans the layouts that need the least memory according to their bounds, then searches for a
  /// sufficient number of nodes.
  void find_least_memory() {
    result_.least_memory = least_memory();
    if (result_.least_memory && limits_.tries_more_nodes) search_more_nodes();
  }

  /// Returns a sort key: the bytes of memory that a layout lacks, then the bytes of device memory
  /// that it needs.
  std::pair<int64_t, int64_t> memory_order(const Layout& layout, const MemoryNeed& memory) const {
    return {missing_bytes(task_, memory, ranks_per_node(layout, task_.nodes)), memory.device};
  }
  std::pair<int64_t, int64_t> memory_order(const Candidate& one) const {
    return memory_order(one.layout, one.bound.memory);
  }
  std::pair<int64_t, int64_t> memory_order(const Evaluation& one) const {
    return memory_order(one.layout, one.memory);
  }

  /// Lists the candidates that need the least memory according to their bounds, except those that
  /// are already planned.
  std::vector<size_t> least_memory_numbers() const {
    std::vector<size_t> order(candidates_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return memory_order(candidates_[a]) < memory_order(candidates_[b]);
    });
    order.resize(std::min(order.size(), kLeastMemoryPlans));
    std::vector<size_t> unknown;
    for (const size_t i : order)
      if (!exact_.contains(i)) unknown.push_back(i);
    return unknown;
  }

  std::optional<Evaluation> least_memory() {
    plan_in_time(least_memory_numbers(), false);
    std::optional<Evaluation> nearest;
    for (const auto& [number, found] : exact_)
      if (found.has_memory() && (!nearest || memory_order(found) < memory_order(*nearest)))
        nearest = found;
    return nearest;
  }

  /// Notes that the time ended before all layouts on this number of nodes were searched. The
  /// smallest such number is kept.
  void note_untried_nodes(int64_t nodes) {
    if (result_.first_untried_nodes == 0) result_.first_untried_nodes = nodes;
  }

  /// Doubles the number of nodes until a layout fits or the time is over.
  void search_more_nodes() {
    SearchTask larger = task_;
    for (larger.nodes *= 2; larger.nodes <= kMaxNodes; larger.nodes *= 2) {
      const double left = limits_.seconds - elapsed_seconds();
      if (left <= 0) return note_untried_nodes(larger.nodes);
      Search search(larger, {.seconds = left});
      search.bounds_seconds_ = kBoundsShare * std::min(left, limits_.seconds * kNodesShare);
      search.planned_seconds_ = planned_seconds_;
      search.planned_effort_ = planned_effort_;
      search.may_plan_late_ = false;
      search.find_bounds();
      const SearchCounts& counts = search.result_.counts;
      // If even the bounds of all tried layouts are too large, none of them fits.
      if (counts.legal > counts.too_large) {
        const std::optional<Evaluation> found = search.least_memory();
        planned_seconds_ = search.planned_seconds_;
        planned_effort_ = search.planned_effort_;
        if (found && found->fits) {
          result_.fit_on_more_nodes = found;
          result_.sufficient_nodes = larger.nodes;
          return;
        }
        if (counts.planned == 0) return note_untried_nodes(larger.nodes);
      }
      // The simplest layouts are tried first. A later one, which has more shards, may fit.
      if (counts.tried < counts.all) note_untried_nodes(larger.nodes);
    }
  }

  const SearchTask& task_;
  const SearchLimits limits_;
  const Clock::time_point begin_;
  const std::vector<Layout> layouts_;
  const std::vector<PlainChoice> choices_;
  /// The first reason for which a layout of each plain choice was refused.
  std::vector<std::string> refusals_;
  /// Legal layouts, sorted by the bound on time.
  std::vector<Candidate> candidates_;
  /// Results of exact plans, by index in `candidates_`.
  std::map<size_t, Evaluation> exact_;
  /// Candidates whose exact plans were abandoned.
  std::set<size_t> abandoned_;
  /// Planned layouts that need more memory than there is.
  std::vector<Layout> too_large_;
  double best_seconds_ = kUnknownTime;
  /// The seconds of all exact plans so far, and their effort.
  double planned_seconds_ = 0;
  double planned_effort_ = 0;
  /// The seconds after which no more bounds are computed.
  double bounds_seconds_;
  /// Says whether the first exact plan may be computed after the search time is over.
  bool may_plan_late_ = true;
  SearchResult result_;
};

}  // namespace

SearchResult search_layouts(const SearchTask& task, const SearchLimits& limits) {
  return Search(task, limits).run();
}

}  // namespace ftrun
