#include "training/slow_ranks.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/median.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr std::array<std::string_view, kRankPhases> kPhaseTexts{"computing", "waiting for its data",
                                                                "waiting for its disk"};

double total_seconds(const SecondsByRankPhase& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

}  // namespace

SlowRankFinder::SlowRankFinder(int rank, std::vector<int> stages, SumOverRanks sum)
    : rank_(static_cast<size_t>(rank)),
      stages_(std::move(stages)),
      sum_(std::move(sum)),
      slow_intervals_(stages_.size(), 0) {}

std::vector<std::string> SlowRankFinder::add_step(int64_t step, const SecondsByRankPhase& seconds) {
  seconds_.push_back(seconds);
  if (static_cast<int64_t>(seconds_.size()) < kComparedSteps) return {};
  const auto middle = seconds_.begin() + kComparedSteps / 2;
  std::nth_element(seconds_.begin(), middle, seconds_.end(),
                   [](const SecondsByRankPhase& a, const SecondsByRankPhase& b) {
                     return total_seconds(a) < total_seconds(b);
                   });
  std::vector<double> sums(stages_.size() * kRankPhases, 0.0);
  std::copy(middle->begin(), middle->end(),
            sums.begin() + static_cast<std::ptrdiff_t>(rank_ * kRankPhases));
  seconds_.clear();
  sum_(sums);
  std::vector<SecondsByRankPhase> seconds_by_rank(stages_.size());
  for (size_t r = 0; r < seconds_by_rank.size(); ++r)
    std::copy_n(sums.begin() + static_cast<std::ptrdiff_t>(r * kRankPhases), kRankPhases,
                seconds_by_rank[r].begin());
  std::vector<std::string> lines;
  for (size_t r = 0; r < seconds_by_rank.size(); ++r)
    if (std::string line = compare_rank(r, seconds_by_rank, step); !line.empty())
      lines.push_back(std::move(line));
  return lines;
}

std::string SlowRankFinder::compare_rank(size_t rank,
                                         const std::vector<SecondsByRankPhase>& seconds_by_rank,
                                         int64_t step) {
  std::vector<double> totals;
  std::array<std::vector<double>, kRankPhases> phases;
  for (size_t r = 0; r < seconds_by_rank.size(); ++r) {
    if (stages_[r] != stages_[rank]) continue;
    totals.push_back(total_seconds(seconds_by_rank[r]));
    for (size_t p = 0; p < kRankPhases; ++p) phases[p].push_back(seconds_by_rank[r][p]);
  }
  const double median_seconds = median(totals);
  const double own_seconds = total_seconds(seconds_by_rank[rank]);
  if (own_seconds < kSlowFactor * median_seconds ||
      own_seconds - median_seconds < kMinExcessSeconds) {
    const bool was_reported = std::exchange(slow_intervals_[rank], 0) >= 2;
    return was_reported ? cat("rank ", rank, " is no longer slow (step ", step, ")") : "";
  }
  if (++slow_intervals_[rank] != 2) return "";
  size_t slowest_phase = 0;
  for (size_t p = 1; p < kRankPhases; ++p)
    if (seconds_by_rank[rank][p] - median(phases[p]) >
        seconds_by_rank[rank][slowest_phase] - median(phases[slowest_phase]))
      slowest_phase = p;
  return cat("rank ", rank, " is slow and delays the others: its own work takes ",
             seconds_text(own_seconds), " per step, the median is ", seconds_text(median_seconds),
             "; most of the extra time is spent ", kPhaseTexts[slowest_phase], " (steps ",
             step - 2 * kComparedSteps + 1, " to ", step, ")");
}

}  // namespace ftrun
