#include "training/step_times.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

StepTimes noted(PredictedStep predicted, const std::vector<double>& seconds, double waited) {
  StepTimes times(std::move(predicted));
  for (const double step : seconds)
    times.note(
        {.step_seconds = step, .data_wait_seconds = 0.5, .exposed_communication_seconds = waited});
  return times;
}

PredictedStep predicted(double seconds, double communication) {
  return {StepTime{.seconds = seconds, .communication = communication}, "m, measured today", ""};
}

TEST_CASE(
    "steps are compared with what was predicted, without the first two and their waits for data") {
  const StepTimes times = noted(predicted(1.0, 0.1), {9, 9, 1.5, 1.6, 1.7}, 0.2);
  CHECK(times.text() ==
        "time of a step: 1 s predicted (m, measured today), 1.1 s measured (median of 3 steps): "
        "9.1 % less\n"
        "  waits for collectives: 0.1 s predicted, 0.2 s measured");
  const auto record = times.record();
  CHECK(record.at("predicted").at("step") == 1000000);
  CHECK(record.at("measured").at("step") == 1100000);
  CHECK(record.at("measured").at("exposed_communication") == 200000);
}

TEST_CASE("the part that is off most is named beyond 15 %") {
  CHECK(noted(predicted(2.0, 0), {0, 0, 1.5}, 0).text() ==
        "time of a step: 2 s predicted (m, measured today), 1 s measured (median of 1 steps): "
        "100.0 % more\n"
        "  most of the difference is in what compute does");
  CHECK(noted(predicted(1.0, 0.1), {0, 0, 2.5}, 1.0).text() ==
        "time of a step: 1 s predicted (m, measured today), 2 s measured (median of 1 steps): 50.0 "
        "% less\n"
        "  waits for collectives: 0.1 s predicted, 1 s measured\n"
        "  most of the difference is in waits for collectives");
}

TEST_CASE("a step that was not predicted is measured, and few steps say nothing") {
  const PredictedStep none{std::nullopt, "", "nobody did"};
  CHECK(noted(none, {9, 9, 1.5}, 0).text() ==
        "time of a step: 1 s measured (median of 1 steps); not predicted: nobody did");
  CHECK_FALSE(noted(none, {9, 9, 1.5}, 0).record().contains("predicted"));
  CHECK(noted(none, {9, 9}, 0).text().empty());
  CHECK(noted(predicted(1, 0), {}, 0).record().contains("measured") == false);
}

TEST_CASE("only the last thousand steps count") {
  std::vector<double> seconds(2 + 1000, 1.5);
  seconds.resize(2 + 1000 + 600, 3.5);
  CHECK(noted(predicted(3.0, 0), seconds, 0).record().at("measured").at("step") == 3000000);
}

}  // namespace
}  // namespace ftrun
