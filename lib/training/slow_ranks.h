#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ftrun {

/// RankPhase is what a rank does in a step while others may wait for it; waiting for other ranks
/// does not count.
enum class RankPhase : uint8_t { kCompute, kData, kDisk };
inline constexpr size_t kRankPhases = 3;
/// SecondsByRankPhase holds seconds by RankPhase.
using SecondsByRankPhase = std::array<double, kRankPhases>;

/// SlowRanks finds stragglers, ranks that hold the others up. Each rank reports its own working
/// time in the median step of a window of steps. A rank that took much longer than the median of
/// the ranks with the same work, in two consecutive windows, is named. Single long steps change
/// nothing.
class SlowRanks {
 public:
  /// Steps of a window. A window's median is a slow step once 5 of its 10 are slow, so that a rank
  /// that turns slow is named 15 to 24 steps later, depending on where in a window it begins.
  static constexpr int64_t kComparedSteps = 10;
  /// The least ratio of a slow rank's step to the median of all ranks with the same work; it must
  /// also exceed the median by at least `kLeastSeconds`.
  static constexpr double kFactor = 1.5;
  static constexpr double kLeastSeconds = 0.02;

  /// Sum adds numbers over all ranks, in place. Collective.
  using Sum = std::function<void(std::span<double> numbers)>;

  /// Takes the team of each rank, `teams[r]`: ranks of one team have the same work.
  SlowRanks(int rank, std::vector<int> teams, Sum sum);

  /// Notes this rank's seconds of a step, after each step. Collective. Returns on all ranks alike a
  /// line for each rank that is slow now and was not before, or is no longer slow; else nothing.
  std::vector<std::string> step(int64_t number, const SecondsByRankPhase& seconds);

 private:
  std::string judge(size_t rank, const std::vector<SecondsByRankPhase>& all, int64_t number);

  const size_t rank_;
  const std::vector<int> teams_;
  Sum sum_;
  std::vector<SecondsByRankPhase> seconds_;
  /// Windows in a row in which a rank was slow.
  std::vector<int> slow_;
};

}  // namespace ftrun
