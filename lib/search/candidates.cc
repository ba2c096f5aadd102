#include "search/candidates.h"

#include <algorithm>
#include <numeric>

#include "search/node_ranks.h"

namespace ftrun {
namespace {

/// The number of layouts with the least memory that are planned.
constexpr size_t kLeastMemoryPlans = 4;

/// Returns whether `one` needs less device memory than `other`. A layout that could not be planned
/// needs more than any other.
bool needs_less(const PlannedLayout& one, const PlannedLayout& other) {
  return std::pair(!one.has_memory(), one.memory.device_bytes) <
         std::pair(!other.has_memory(), other.memory.device_bytes);
}

}  // namespace

void Candidates::sort_by_bound() {
  std::stable_sort(
      candidates_.begin(), candidates_.end(),
      [](const Candidate& a, const Candidate& b) { return a.bound.seconds < b.bound.seconds; });
}

std::vector<size_t> Candidates::list_matching(
    const std::function<bool(const Layout&)>& matches) const {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < candidates_.size(); ++i)
    if (matches(candidates_[i].layout)) numbers.push_back(i);
  return numbers;
}

void Candidates::add_planned(size_t number, PlannedLayout found) {
  if (found.is_ranked()) best_seconds_ = std::min(best_seconds_, found.time->seconds);
  if (!found.fits) too_large_.push_back(found.layout);
  planned_.emplace(number, std::move(found));
}

bool Candidates::may_be_faster(size_t number) const {
  return candidates_[number].may_fit && candidates_[number].bound.seconds < best_seconds_ &&
         !is_planned(number);
}

int64_t Candidates::count_pruned() const {
  int64_t count = 0;
  for (size_t i = 0; i < candidates_.size(); ++i)
    if (candidates_[i].may_fit && !is_attempted(i) && candidates_[i].bound.seconds >= best_seconds_)
      ++count;
  return count;
}

std::vector<PlannedLayout> Candidates::ranking() const {
  std::vector<PlannedLayout> ranked;
  for (const auto& [number, found] : planned_)
    if (found.is_ranked()) ranked.push_back(found);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const PlannedLayout& a, const PlannedLayout& b) {
                     return std::pair(a.time->seconds, complexity_score(a.layout)) <
                            std::pair(b.time->seconds, complexity_score(b.layout));
                   });
  return ranked;
}

size_t Candidates::fastest_to_plan(const std::vector<size_t>& numbers) const {
  return *std::min_element(numbers.begin(), numbers.end(),
                           [&](size_t a, size_t b) { return effort_of(a) < effort_of(b); });
}

bool Candidates::is_probably_too_large(const Layout& layout) const {
  return std::any_of(too_large_.begin(), too_large_.end(), [&](const Layout& other) {
    return layout.ranks() == other.ranks() && layout.tensor == other.tensor &&
           layout.pipeline == other.pipeline && layout.schedule == other.schedule &&
           layout.chunks == other.chunks && layout.optimizer_offload == other.optimizer_offload &&
           layout.parameter_offload == other.parameter_offload &&
           layout.micro_batch >= other.micro_batch && layout.recompute <= other.recompute &&
           layout.zero <= other.zero && layout.shards() <= other.shards();
  });
}

std::optional<PlannedLayout> Candidates::best_of(const std::vector<size_t>& numbers) const {
  for (const bool fitting : {true, false})
    if (const PlannedLayout* best = find_best(numbers, fitting)) return *best;
  return std::nullopt;
}

const PlannedLayout* Candidates::find_best(const std::vector<size_t>& numbers, bool fitting) const {
  const PlannedLayout* best = nullptr;
  for (const size_t i : numbers) {
    const auto found = planned_.find(i);
    if (found == planned_.end() || found->second.is_ranked() != fitting) continue;
    const PlannedLayout& one = found->second;
    const bool better = best == nullptr || (fitting ? one.time->seconds < best->time->seconds
                                                    : needs_less(one, *best));
    if (better) best = &one;
  }
  return best;
}

/// Returns a sort key: the bytes of memory that a layout lacks, then the bytes of device memory
/// that it needs.
std::pair<int64_t, int64_t> Candidates::memory_sort_key(const Layout& layout,
                                                        const MemoryNeed& memory) const {
  return {missing_bytes(task_, memory, ranks_per_node(layout, task_.nodes)), memory.device_bytes};
}

std::vector<size_t> Candidates::list_unplanned_of_least_memory() const {
  std::vector<size_t> order(candidates_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return memory_sort_key(candidates_[a]) < memory_sort_key(candidates_[b]);
  });
  order.resize(std::min(order.size(), kLeastMemoryPlans));
  std::vector<size_t> unknown;
  for (const size_t i : order)
    if (!is_planned(i)) unknown.push_back(i);
  return unknown;
}

std::optional<PlannedLayout> Candidates::find_planned_of_least_memory() const {
  std::optional<PlannedLayout> nearest;
  for (const auto& [number, found] : planned_)
    if (found.has_memory() && (!nearest || memory_sort_key(found) < memory_sort_key(*nearest)))
      nearest = found;
  return nearest;
}

}  // namespace ftrun
