#include "report/effective_time.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

StepMetrics step_of(double seconds) {
  StepMetrics metrics;
  metrics.step_seconds = seconds;
  return metrics;
}

TEST_CASE("effective time is the share of time since the first start that went into kept steps") {
  RunManifest manifest;
  record_first_start(manifest, 1000.0);
  const EffectiveTime first = record_effective_time(manifest, {step_of(2), step_of(3)}, 1010.0);
  CHECK(first.ratio() == Approx(0.5));
  CHECK(effective_time_text(first) ==
        "effective training time: 50.0 % of 10.0s since the first start (5.0s in steps that "
        "counted)");
  // A run that is started again keeps the time of its first start.
  record_first_start(manifest, 1030.0);
  const EffectiveTime second =
      record_effective_time(manifest, {step_of(2), step_of(3), step_of(5)}, 1040.0);
  CHECK(second.ratio() == Approx(0.25));
  CHECK(manifest.counters.at("counted_steps_milliseconds") == 10'000);
  CHECK(manifest.counters.at("since_first_start_milliseconds") == 40'000);
  CHECK(manifest.counters.at("effective_training_time_per_million") == 250'000);
}

TEST_CASE("the last restarts are listed with time, reason and steps") {
  RunManifest manifest;
  manifest.restarts = {{"2000-01-01T00:00:00Z", "done", -1, 4, 4},
                       {"2000-01-01T00:00:09Z", "killed by signal 9 (Killed)\nmore", 1, 12, 10}};
  CHECK(restart_texts(manifest, 0).empty());
  CHECK(restart_texts(manifest, 1) ==
        std::vector<std::string>{"restarted at 2000-01-01T00:00:09Z after step 12, from step 10: "
                                 "rank 1: killed by signal 9 (Killed)"});
  CHECK(restart_texts(manifest, 5).size() == 2);
  manifest.restarts[1].ranks = {
      .count = 2, .removed_ranks = {1, 3}, .removed_reason = "rank 1 failed twice"};
  CHECK(restart_texts(manifest, 1)[0] ==
        "restarted at 2000-01-01T00:00:09Z after step 12, from step 10, with 2 ranks "
        "(removed: ranks 1, 3): rank 1: killed by signal 9 (Killed)");
  CHECK(restart_texts(manifest, 5)[0] ==
        "restarted at 2000-01-01T00:00:00Z after step 4, from step 4: done");
}

}  // namespace
}  // namespace ftrun
