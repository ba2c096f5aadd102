#include "search/time_budget.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

// The times are so long that no test uses a noticeable share of them.
constexpr double kSeconds = 1e6;

TEST_CASE("a search learns from its plans how long others take") {
  TimeBudget time(kSeconds);
  CHECK_FALSE(time.has_spent_share(0.1));
  CHECK_FALSE(time.has_spent_bounds_time());
  CHECK(time.remaining_seconds() > 0.9 * kSeconds);
  CHECK(time.ends_in_time(1e9));  // 1e4 s, as long as no plan was made
  time.add_plan_effort(2);
  time.add_plan_seconds(10);
  CHECK(time.ends_in_time(1e5));  // 6.5 s for a unit: 1.3 times as long as measured
  CHECK_FALSE(time.ends_in_time(2e5));
}

TEST_CASE("only the first plan may end a second late") {
  const TimeBudget time(kSeconds);
  CHECK(time.allows_first_plan_until(kSeconds + 1));
  CHECK_FALSE(time.allows_first_plan_until(kSeconds + 1.5));
  CHECK(time.deadline() > TimeBudget::Clock::now());
}

TEST_CASE("a search for more nodes knows earlier plans and is never late") {
  TimeBudget time(kSeconds);
  time.add_plan_effort(1);
  time.add_plan_seconds(1);
  TimeBudget more = time.budget_for_more_nodes(0.5 * kSeconds);
  CHECK(time.allows_late_first_plan());
  CHECK_FALSE(more.allows_late_first_plan());
  CHECK(more.ends_in_time(0.3 * kSeconds));
  CHECK_FALSE(more.ends_in_time(0.4 * kSeconds));
  more.add_plan_effort(1);
  more.add_plan_seconds(9);
  time.copy_plan_times(more);
  CHECK_FALSE(time.ends_in_time(0.2 * kSeconds));
}

TEST_CASE("a search without time has no time for bounds or plans") {
  const TimeBudget time(-1);
  CHECK(time.has_spent_bounds_time());
  CHECK(time.has_spent_share(1));
  CHECK_FALSE(time.ends_in_time(1));
}

}  // namespace
}  // namespace ftrun
