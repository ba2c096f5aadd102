#include "search/plain_choices.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "search/node_ranks.h"

namespace ftrun {
namespace {

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

}  // namespace

PlainChoices::PlainChoices(const SearchTask& task, const std::vector<Layout>& layouts)
    : task_(task), choices_(plain_choices(layouts)), refusals_(choices_.size()) {}

void PlainChoices::note_refusal(const Layout& layout, const std::string& why) {
  for (size_t c = 0; c < choices_.size(); ++c)
    if (refusals_[c].empty() && choices_[c].matches(layout)) refusals_[c] = why;
}

std::vector<PlainChoiceComparison> PlainChoices::compare(
    const Candidates& candidates, const std::vector<Evaluation>& ranking) const {
  std::vector<PlainChoiceComparison> comparisons;
  for (size_t c = 0; c < choices_.size(); ++c) {
    PlainChoiceComparison why{.choice = choices_[c].name};
    const std::vector<size_t> legal = candidates.numbers_of(choices_[c].matches);
    if (legal.empty()) {
      why.refusal = refusals_[c];
      if (why.refusal.empty()) continue;  // no layout of this machine has the choice
    } else {
      why.is_chosen = !ranking.empty() && choices_[c].matches(ranking.front().layout);
      set_bound(candidates, legal, why);
      if (!why.is_chosen) why.best = candidates.best_of(legal);
    }
    comparisons.push_back(std::move(why));
  }
  return comparisons;
}

void PlainChoices::set_bound(const Candidates& candidates, const std::vector<size_t>& numbers,
                             PlainChoiceComparison& why) const {
  // Candidates are sorted by the bound on time, so the first one has the smallest bound.
  Bound least = candidates.at(numbers.front()).bound;
  why.ranks = ranks_per_node(candidates.at(numbers.front()).layout, task_.nodes);
  for (const size_t i : numbers) {
    const Candidate& one = candidates.at(i);
    why.may_fit |= one.fits;
    if (one.bound.memory.device < least.memory.device) {
      least.memory.device = one.bound.memory.device;
      why.ranks = ranks_per_node(one.layout, task_.nodes);
    }
    least.memory.host = std::min(least.memory.host, one.bound.memory.host);
  }
  why.bound = least;
}

}  // namespace ftrun
