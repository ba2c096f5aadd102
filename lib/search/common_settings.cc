#include "search/common_settings.h"

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

std::vector<CommonSetting> list_common_settings(const std::vector<Layout>& layouts) {
  std::vector<CommonSetting> settings;
  for (int64_t zero = 0; zero <= 3; ++zero)
    settings.push_back({zero == 0 ? "ZeRO 0, plain data parallelism" : cat("ZeRO ", zero),
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
    settings.push_back({cat("tensor ", degree), [degree](const Layout& one) {
                          return one.tensor == degree && one.pipeline == 1 && !offloads(one) &&
                                 !recomputes(one);
                        }});
  for (const int64_t degree : pipelines)
    settings.push_back({cat("pipeline ", degree), [degree](const Layout& one) {
                          return one.pipeline == degree && one.tensor == 1 && !offloads(one) &&
                                 !recomputes(one);
                        }});
  settings.push_back({"offload of the optimizer", [](const Layout& one) {
                        return one.optimizer_offload == OffloadDevice::kCpu &&
                               one.parameter_offload == OffloadDevice::kNone &&
                               is_data_parallel(one) && !recomputes(one);
                      }});
  for (const RecomputeLevel level : {RecomputeLevel::kSelective, RecomputeLevel::kFull})
    settings.push_back({cat("recompute ", name_of(level)), [level](const Layout& one) {
                          return one.recompute == level && is_data_parallel(one) && !offloads(one);
                        }});
  return settings;
}

}  // namespace

CommonSettings::CommonSettings(const SearchTask& task, const std::vector<Layout>& layouts)
    : task_(task), settings_(list_common_settings(layouts)), refusals_(settings_.size()) {}

void CommonSettings::add_refusal(const Layout& layout, const std::string& reason) {
  for (size_t c = 0; c < settings_.size(); ++c)
    if (refusals_[c].empty() && settings_[c].matches(layout)) refusals_[c] = reason;
}

std::vector<CommonSettingComparison> CommonSettings::compare(
    const Candidates& candidates, const std::vector<PlannedLayout>& ranking) const {
  std::vector<CommonSettingComparison> comparisons;
  for (size_t c = 0; c < settings_.size(); ++c) {
    CommonSettingComparison comparison{.setting = settings_[c].name};
    const std::vector<size_t> allowed = candidates.list_matching(settings_[c].matches);
    if (allowed.empty()) {
      comparison.refusal = refusals_[c];
      if (comparison.refusal.empty()) continue;  // no layout of this machine has the setting
    } else {
      comparison.is_chosen = !ranking.empty() && settings_[c].matches(ranking.front().layout);
      set_bound(candidates, allowed, comparison);
      if (!comparison.is_chosen) comparison.best = candidates.best_of(allowed);
    }
    comparisons.push_back(std::move(comparison));
  }
  return comparisons;
}

void CommonSettings::set_bound(const Candidates& candidates, const std::vector<size_t>& numbers,
                               CommonSettingComparison& comparison) const {
  // Candidates are sorted by the bound on time, so the first one has the smallest bound.
  LayoutBound least = candidates.at(numbers.front()).bound;
  comparison.ranks = ranks_per_node(candidates.at(numbers.front()).layout, task_.nodes);
  for (const size_t i : numbers) {
    const Candidate& one = candidates.at(i);
    comparison.may_fit |= one.may_fit;
    if (one.bound.memory.device_bytes < least.memory.device_bytes) {
      least.memory.device_bytes = one.bound.memory.device_bytes;
      comparison.ranks = ranks_per_node(one.layout, task_.nodes);
    }
    least.memory.host_bytes = std::min(least.memory.host_bytes, one.bound.memory.host_bytes);
  }
  comparison.bound = least;
}

}  // namespace ftrun
