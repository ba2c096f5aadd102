#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ftrun {

/// RankPhase is a kind of a rank's own work in a step, for which other ranks may have to wait.
/// Waiting for other ranks is not among them.
enum class RankPhase : uint8_t { kCompute, kData, kDisk };
inline constexpr size_t kRankPhases = 3;
/// SecondsByRankPhase holds seconds by RankPhase.
using SecondsByRankPhase = std::array<double, kRankPhases>;

/// SlowRankFinder finds stragglers: ranks for which the other ranks wait. Each rank reports its own
/// working time in the median step of each interval of kComparedSteps steps. A rank is named if it
/// took much longer than the median of the ranks with the same work in two consecutive intervals.
/// Single slow steps have no effect.
class SlowRankFinder {
 public:
  /// The number of steps of an interval. The median of an interval is a slow step once 5 of its 10
  /// steps are slow, so a rank is named 15 to 24 steps after it becomes slow, depending on the
  /// position in the interval.
  static constexpr int64_t kComparedSteps = 10;
  /// The minimum ratio of a slow rank's step to the median of all ranks with the same work; the
  /// step must also exceed the median by at least `kMinExcessSeconds`.
  static constexpr double kSlowFactor = 1.5;
  static constexpr double kMinExcessSeconds = 0.02;

  /// SumOverRanks is a function that sums numbers over all ranks, in place. Collective.
  using SumOverRanks = std::function<void(std::span<double> numbers)>;

  /// Makes the search for rank `rank`. `stages[r]` is the pipeline stage of rank r; ranks of the
  /// same stage have the same work.
  SlowRankFinder(int rank, std::vector<int> stages, SumOverRanks sum);

  /// Adds this rank's seconds of a step; called after each step. Collective. Returns the same lines
  /// on all ranks: one for each rank that has become slow, or is no longer slow.
  std::vector<std::string> add_step(int64_t step, const SecondsByRankPhase& seconds);

 private:
  std::string compare_rank(size_t rank, const std::vector<SecondsByRankPhase>& seconds_by_rank,
                           int64_t step);

  const size_t rank_;
  const std::vector<int> stages_;
  SumOverRanks sum_;
  std::vector<SecondsByRankPhase> seconds_;
  /// The number of consecutive intervals in which each rank was slow.
  std::vector<int> slow_intervals_;
};

}  // namespace ftrun
