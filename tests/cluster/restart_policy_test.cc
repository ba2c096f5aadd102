#include "cluster/restart_policy.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

namespace {

FailureSummary failed(int code) {
  return {.exit_code = code, .text = "", .rank = 0, .reason = ""};
}

}  // namespace

TEST_CASE(
    "a restart may succeed after a failure of the environment, of a peer or by a signal, and after "
    "no other") {
  for (const int code : {5, 6, 129, 134, 137, 139}) CHECK(may_succeed_on_restart(failed(code)));
  for (const int code : {1, 2, 3, 4, 7, 75, 127}) CHECK_FALSE(may_succeed_on_restart(failed(code)));
}

TEST_CASE("restarts without progress wait longer each time, and end after the maximum") {
  RestartPolicy policy(
      {.max_restarts_without_progress = 3, .first_delay = 1s, .longest_delay = 3s});
  CHECK(policy.take_restart(failed(137), "") == 1000ms);
  CHECK(policy.take_restart(failed(6), "") == 2000ms);
  CHECK(policy.take_restart(failed(6), "") == 3000ms);
  CHECK(policy.restarts_without_progress() == 3);
  CHECK_FALSE(policy.take_restart(failed(6), ""));
  CHECK(policy.first_failure().exit_code == 137);
}

TEST_CASE("a new checkpoint resets the count of restarts") {
  RestartPolicy policy(
      {.max_restarts_without_progress = 2, .first_delay = 1s, .longest_delay = 8s});
  CHECK(policy.take_restart(failed(137), "step-00000010") == 1000ms);
  CHECK(policy.take_restart(failed(5), "step-00000010") == 2000ms);
  CHECK(policy.take_restart(failed(6), "step-00000020") == 1000ms);
  CHECK(policy.first_failure().exit_code == 6);
  CHECK(policy.take_restart(failed(137), "step-00000020") == 2000ms);
  CHECK_FALSE(policy.take_restart(failed(137), "step-00000020"));
}

TEST_CASE(
    "a rank's failures are consecutive as long as nothing new is saved and no other one fails") {
  RestartPolicy policy({.max_restarts_without_progress = 3});
  const auto of_rank = [](int rank) {
    FailureSummary failure = failed(137);
    failure.rank = rank;
    failure.belongs_to_rank = true;
    return failure;
  };
  CHECK(policy.count_failure(of_rank(3), "step-10") == 1);
  CHECK(policy.count_failure(of_rank(3), "step-10") == 2);
  CHECK(policy.count_failure(of_rank(3), "step-20") == 1);
  CHECK(policy.count_failure(of_rank(1), "step-20") == 1);
  CHECK(policy.count_failure(of_rank(3), "step-20") == 1);
  CHECK(policy.count_failure(of_rank(3), "step-20") == 2);
  policy.reset_progress();
  CHECK(policy.count_failure(of_rank(3), "step-20") == 1);
  // A failure that belongs to no rank is not counted, and failures before and after it are not
  // consecutive.
  FailureSummary full = failed(5);
  full.rank = 3;
  CHECK(policy.count_failure(full, "step-20") == 0);
  CHECK(policy.count_failure(full, "step-20") == 0);
  CHECK(policy.count_failure(of_rank(3), "step-20") == 1);
}

TEST_CASE("with another number of ranks the count of restarts begins again") {
  RestartPolicy policy({.max_restarts_without_progress = 1, .first_delay = 1s});
  CHECK(policy.take_restart(failed(137), "") == 1000ms);
  policy.reset_progress();
  CHECK(policy.take_restart(failed(6), "") == 1000ms);
  CHECK(policy.first_failure().exit_code == 6);
  CHECK_FALSE(policy.take_restart(failed(6), ""));
}

TEST_CASE(
    "nothing is restarted if no restarts are configured, or if the failure is not a matter of "
    "chance") {
  CHECK_FALSE(RestartPolicy({}).take_restart(failed(137), ""));
  RestartPolicy policy({.max_restarts_without_progress = 3});
  CHECK_FALSE(policy.take_restart(failed(4), ""));
  CHECK(policy.restarts_without_progress() == 0);
}
