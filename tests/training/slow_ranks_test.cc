#include "training/slow_ranks.h"

#include <functional>
#include <memory>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/text.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using Lines = std::vector<std::string>;
/// Returns the times of a rank's phases in a step, in seconds.
using Times = std::function<SecondsByRankPhase(int rank, int64_t step)>;

/// Returns (step, warning) for each warning; all ranks must give the same ones. The ranks run one
/// after another, and the sums over ranks that they ask for are computed from all ranks' times.
std::vector<std::pair<int64_t, std::string>> warnings_of(const std::vector<int>& stages,
                                                         int64_t steps, const Times& times) {
  const auto world_size = static_cast<int>(stages.size());
  std::vector<std::pair<int64_t, std::string>> found;
  std::vector<Lines> last(stages.size());
  std::vector<std::unique_ptr<SlowRankFinder>> ranks;
  std::vector<std::vector<double>> given(stages.size());
  for (int r = 0; r < world_size; ++r)
    ranks.push_back(std::make_unique<SlowRankFinder>(r, stages, [&, r](std::span<double> numbers) {
      given[static_cast<size_t>(r)].assign(numbers.begin(), numbers.end());
      // Only the last rank gets the true sums, since it runs last; all ranks would come to the same
      // result.
      if (r == world_size - 1)
        for (int other = 0; other < r; ++other)
          for (size_t i = 0; i < numbers.size(); ++i)
            numbers[i] += given[static_cast<size_t>(other)][i];
    }));
  for (int64_t step = 1; step <= steps; ++step)
    for (int r = 0; r < world_size; ++r)
      for (const std::string& line : ranks[static_cast<size_t>(r)]->add_step(step, times(r, step)))
        if (r == world_size - 1) found.emplace_back(step, line);
  return found;
}

TEST_CASE(
    "a rank that becomes slow is named within two intervals, with its slow phase, and again when "
    "it is no longer slow") {
  const auto times = [](size_t phase) {
    return [phase](int rank, int64_t step) {
      SecondsByRankPhase seconds{1.0, 0.01, 0.1};
      if (rank == 2 && step > 30 && step <= 70) seconds[phase] += 1.2;
      return seconds;
    };
  };
  const Lines phases{"computing", "waiting for its data", "waiting for its disk"};
  for (size_t phase = 0; phase < kRankPhases; ++phase) {
    const auto found = warnings_of({0, 0, 0, 0}, 100, times(phase));
    REQUIRE(found.size() == 2);
    REQUIRE(found[0].first == 50);
    REQUIRE(found[0].second ==
            "rank 2 is slow and delays the others: its own work takes 2.31 s per step, the median "
            "is 1.11 s; most of the extra time is spent " +
                phases[phase] + " (steps 31 to 50)");
    REQUIRE(found[1] == std::pair<int64_t, std::string>{80, "rank 2 is no longer slow (step 80)"});
  }
}

TEST_CASE("the times of short steps are named with enough digits to differ") {
  const auto found = warnings_of({0, 0, 0}, 20, [](int rank, int64_t) {
    return SecondsByRankPhase{rank == 0 ? 0.045 : 0.012, 0, 0};
  });
  REQUIRE(found.size() == 1);
  REQUIRE(found[0].second ==
          "rank 0 is slow and delays the others: its own work takes 0.045 s per step, the median "
          "is 0.012 s; most of the extra time is spent computing (steps 1 to 20)");
}

TEST_CASE("of two ranks the slow one is named, whichever that is") {
  for (const int slow : {0, 1}) {
    const auto found = warnings_of({0, 0}, 20, [&](int rank, int64_t) {
      return SecondsByRankPhase{rank == slow ? 2.0 : 1.0, 0, 0};
    });
    REQUIRE(found.size() == 1);
    REQUIRE(found[0].second.starts_with(cat("rank ", slow, " is slow")));
  }
}

TEST_CASE(
    "a stage with more work is not slow; a rank that is slower than another rank of its stage is") {
  const auto uneven = [](int rank, int64_t) {
    return SecondsByRankPhase{rank < 2 ? 1.0 : 3.0, 0, 0};
  };
  REQUIRE(warnings_of({0, 0, 1, 1}, 100, uneven).empty());
  const auto slow = [](int rank, int64_t) {
    return SecondsByRankPhase{rank == 1 ? 2.0 : rank < 2 ? 1.0 : 3.0, 0, 0};
  };
  REQUIRE(warnings_of({0, 0, 1, 1}, 20, slow).size() == 1);
}

TEST_CASE("ten thousand even steps raise no alarm, nor does a single slow interval") {
  std::mt19937 random(3);
  // Steps differ by up to a quarter, and now and then a step takes ten times as long.
  std::uniform_real_distribution<double> noise(1.0, 1.25);
  REQUIRE(warnings_of({0, 0, 0, 0}, 10000, [&](int, int64_t) {
            return SecondsByRankPhase{noise(random) * (random() % 50 == 0 ? 10 : 1) * 0.1, 0, 0};
          }).empty());
  REQUIRE(warnings_of({0, 0, 0}, 100, [](int rank, int64_t step) {
            return SecondsByRankPhase{rank == 1 && step > 40 && step <= 50 ? 3.0 : 1.0, 0, 0};
          }).empty());
  // Steps that take almost no time are never reported as slow.
  REQUIRE(warnings_of({0, 0}, 100, [](int rank, int64_t) {
            return SecondsByRankPhase{rank == 1 ? 0.015 : 0.001, 0, 0};
          }).empty());
}

}  // namespace
}  // namespace ftrun
