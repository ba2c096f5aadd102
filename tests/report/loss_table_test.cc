#include <limits>

#include "base/text.h"
#include "report/loss_table.h"
#include "report_test.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

constexpr double kTableNan = std::numeric_limits<double>::quiet_NaN();

StepMetrics step_with_loss(int64_t step, double loss) {
  StepMetrics m = example_step(step);
  m.loss = loss;
  return m;
}

StepMetrics validation_step(int64_t step, double loss) {
  StepMetrics m;
  m.step = step;
  m.trained = false;
  m.evaluations = {{.set = "validation", .loss = loss}};
  return m;
}

TEST_CASE("the loss table averages between its rows and keeps the first and the last step") {
  std::vector<StepMetrics> metrics{validation_step(0, 3.5)};
  for (int64_t step = 1; step <= 60; ++step) metrics.push_back(step_with_loss(step, 3));
  metrics[1].loss = 4;
  metrics[2].loss = kTableNan;  // a step without labels
  metrics[2].tokens = 0;
  metrics[60].evaluations = {{.set = "validation", .loss = 2.75}};
  REQUIRE(loss_table(metrics, 4) ==
          "step  training loss  validation loss  tokens/s\n"
          "----  -------------  ---------------  --------\n"
          "   0              -           3.5000         -\n"
          "  20         3.0526                -       973\n"
          "  40         3.0000                -      1024\n"
          "  60         3.0000           2.7500      1024\n"
          "(training loss and tokens/s: of all steps since the row above)\n");
}

TEST_CASE("evaluations determine the rows of the loss table if there are enough") {
  std::vector<StepMetrics> metrics;
  for (int64_t step = 1; step <= 10; ++step) metrics.push_back(step_with_loss(step, 1));
  metrics[2].evaluations = {{.set = "validation", .loss = 5}};
  metrics[6].evaluations = {{.set = "validation", .loss = kTableNan, .tokens = 8}};
  metrics[9].evaluations = {{.set = "validation", .loss = kTableNan}};  // no token was counted
  REQUIRE(loss_table(metrics) ==
          "step  training loss  validation loss  tokens/s\n"
          "----  -------------  ---------------  --------\n"
          "   1         1.0000                -      1024\n"
          "   3         1.0000           5.0000      1024\n"
          "   7         1.0000              nan      1024\n"
          "  10         1.0000                -      1024\n"
          "(training loss and tokens/s: of all steps since the row above)\n");
}

TEST_CASE("each evaluated set has a column") {
  std::vector<StepMetrics> metrics{validation_step(0, 3.5), step_with_loss(1, 2)};
  metrics[0].evaluations.push_back({.set = "code", .loss = 1.25});
  metrics[1].evaluations = {{.set = "code", .loss = 1}};
  REQUIRE(loss_table(metrics) ==
          "step  training loss  validation loss  code loss  tokens/s\n"
          "----  -------------  ---------------  ---------  --------\n"
          "   0              -           3.5000     1.2500         -\n"
          "   1         2.0000                -     1.0000      1024\n");
}

TEST_CASE("an empty run has an empty table") {
  REQUIRE(loss_table({}) ==
          "step  training loss  validation loss  tokens/s\n"
          "----  -------------  ---------------  --------\n");
}

}  // namespace
}  // namespace ftrun
