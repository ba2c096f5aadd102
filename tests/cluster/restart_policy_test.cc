#include "cluster/restart_policy.h"

#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

namespace {

FailureSummary failure_with_code(int code) {
  return {.exit_code = code, .text = "", .rank = 0, .reason = ""};
}

}  // namespace

TEST_CASE(
    "a restart may succeed after a failure of the environment, of a peer or by a signal, and after "
    "no other") {
  for (const int code : {5, 6, 129, 134, 137, 139})
    CHECK(may_succeed_on_restart(failure_with_code(code)));
  for (const int code : {1, 2, 3, 4, 7, 75, 127})
    CHECK_FALSE(may_succeed_on_restart(failure_with_code(code)));
}

TEST_CASE("restarts without progress wait longer each time, and end after the maximum") {
  RestartPolicy policy(
      {.max_restarts_without_progress = 3, .first_delay = 1s, .longest_delay = 3s});
  CHECK(policy.decide(failure_with_code(137), "").delay == 1000ms);
  CHECK(policy.decide(failure_with_code(6), "").delay == 2000ms);
  const RestartDecision third = policy.decide(failure_with_code(6), "");
  CHECK(third.delay == 3000ms);
  CHECK(third.restarts_without_progress == 3);
  CHECK_FALSE(third.repeated_failure);
  const RestartDecision last = policy.decide(failure_with_code(6), "");
  CHECK_FALSE(last.delay);
  CHECK(last.restarts_without_progress == 3);
  REQUIRE(last.repeated_failure);
  CHECK(last.repeated_failure->exit_code == 137);
}

TEST_CASE("a new checkpoint resets the count of restarts") {
  RestartPolicy policy(
      {.max_restarts_without_progress = 2, .first_delay = 1s, .longest_delay = 8s});
  CHECK(policy.decide(failure_with_code(137), "step-00000010").delay == 1000ms);
  CHECK(policy.decide(failure_with_code(5), "step-00000010").delay == 2000ms);
  CHECK(policy.decide(failure_with_code(6), "step-00000020").delay == 1000ms);
  CHECK(policy.decide(failure_with_code(137), "step-00000020").delay == 2000ms);
  const RestartDecision last = policy.decide(failure_with_code(137), "step-00000020");
  CHECK_FALSE(last.delay);
  REQUIRE(last.repeated_failure);
  CHECK(last.repeated_failure->exit_code == 6);
}

TEST_CASE(
    "a rank's failures are consecutive as long as nothing new is saved and no other one fails") {
  int local_ranks = 0;
  std::vector<int> planned_times;
  RestartPolicy policy({.max_restarts_without_progress = 9}, [&](const FailureSummary&, int times) {
    planned_times.push_back(times);
    return RestartSettings{.local_ranks = local_ranks};
  });
  const auto of_rank = [](int rank) {
    FailureSummary failure = failure_with_code(137);
    failure.rank = rank;
    failure.belongs_to_rank = true;
    return failure;
  };
  const auto times = [&](const FailureSummary& failure, const std::string& saved) {
    const int counted = policy.decide(failure, saved).consecutive_failures;
    REQUIRE(planned_times.back() == counted);
    return counted;
  };
  CHECK(times(of_rank(3), "step-10") == 1);
  CHECK(times(of_rank(3), "step-10") == 2);
  CHECK(times(of_rank(3), "step-20") == 1);
  CHECK(times(of_rank(1), "step-20") == 1);
  CHECK(times(of_rank(3), "step-20") == 1);
  CHECK(times(of_rank(3), "step-20") == 2);
  // The restart after this failure has another number of ranks.
  local_ranks = 2;
  CHECK(times(of_rank(3), "step-20") == 3);
  CHECK(times(of_rank(3), "step-20") == 1);
  // A failure that belongs to no rank is not counted, and failures before and after it are not
  // consecutive.
  FailureSummary full = failure_with_code(5);
  full.rank = 3;
  CHECK(times(full, "step-20") == 0);
  CHECK(times(full, "step-20") == 0);
  CHECK(times(of_rank(3), "step-20") == 1);
}

TEST_CASE("with another number of ranks the count of restarts begins again") {
  int local_ranks = 0, plans = 0;
  RestartPolicy policy({.max_restarts_without_progress = 1,
                        .first_delay = 1s,
                        .may_remove_ranks = [](int failures) { return failures >= 2; }},
                       [&](const FailureSummary&, int) {
                         ++plans;
                         return RestartSettings{.local_ranks = local_ranks};
                       });
  const auto of_rank = [](int code) {
    FailureSummary failure = failure_with_code(code);
    failure.belongs_to_rank = true;
    return failure;
  };
  CHECK(policy.decide(of_rank(137), "").delay == 1000ms);
  local_ranks = 2;
  const RestartDecision with_others = policy.decide(of_rank(6), "");
  CHECK(with_others.delay == 1000ms);
  CHECK(with_others.restart.local_ranks == 2);
  // No restart is left after the next failure, and the plan may not remove ranks yet.
  const RestartDecision last = policy.decide(of_rank(5), "");
  CHECK_FALSE(last.delay);
  REQUIRE(last.repeated_failure);
  CHECK(last.repeated_failure->exit_code == 6);
  CHECK(plans == 2);
}

TEST_CASE("nothing is restarted if no restarts are configured") {
  const RestartDecision decision = RestartPolicy({}).decide(failure_with_code(137), "");
  CHECK_FALSE(decision.delay);
  CHECK_FALSE(decision.repeated_failure);
  CHECK(decision.restarts_without_progress == 0);
}

TEST_CASE("a failure without a plan for a restart takes none of the allowed restarts") {
  bool has_plan = false;
  RestartPolicy policy({.max_restarts_without_progress = 1, .first_delay = 1s},
                       [&](const FailureSummary&, int) {
                         return has_plan ? std::optional(RestartSettings{}) : std::nullopt;
                       });
  const RestartDecision decision = policy.decide(failure_with_code(137), "");
  CHECK_FALSE(decision.delay);
  CHECK_FALSE(decision.repeated_failure);
  has_plan = true;
  CHECK(policy.decide(failure_with_code(137), "").delay == 1000ms);
}
