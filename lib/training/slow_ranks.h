#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ftrun {

/// RankPhase is the work of a rank in a step while others may wait for it; waiting for other ranks
/// does not count.
enum class RankPhase : uint8_t { kCompute, kData, kDisk };
inline constexpr size_t kRankPhases = 3;
/// SecondsByRankPhase holds seconds by RankPhase.
using SecondsByRankPhase = std::array<double, kRankPhases>;

/// SlowRanks finds stragglers, ranks for which the others wait. Each rank reports its own working
/// time in the median step of each interval of kComparedSteps steps. SlowRanks names a rank that
/// took much longer than the median of the ranks with the same work in two consecutive intervals.
/// Single long steps change nothing.
class SlowRanks {
 public:
  /// The number of steps of an interval. Its median is a slow step once 5 of its 10 steps are slow,
  /// so a rank that becomes slow is named 15 to 24 steps later, depending on where in an interval
  /// this happens.
  static constexpr int64_t kComparedSteps = 10;
  /// The least ratio of a slow rank's step to the median of all ranks with the same work; the step
  /// must also exceed the median by at least `kMinSeconds`.
  static constexpr double kFactor = 1.5;
  static constexpr double kMinSeconds = 0.02;

  /// Sum adds numbers over all ranks, in place. Collective.
  using Sum = std::function<void(std::span<double> numbers)>;

  /// Takes the team of each rank, `teams[r]`; ranks of one team have the same work.
  SlowRanks(int rank, std::vector<int> teams, Sum sum);

  /// Adds this rank's seconds of a step; called after each step. Collective. Returns the same lines
  /// on all ranks: one for each rank that has become slow, or is slow no longer.
  std::vector<std::string> step(int64_t number, const SecondsByRankPhase& seconds);

 private:
  std::string judge(size_t rank, const std::vector<SecondsByRankPhase>& all, int64_t number);

  const size_t rank_;
  const std::vector<int> teams_;
  Sum sum_;
  std::vector<SecondsByRankPhase> seconds_;
  /// The number of consecutive intervals in which each rank was slow.
  std::vector<int> slow_;
};

}  // namespace ftrun
