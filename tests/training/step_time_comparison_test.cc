#include "training/step_time_comparison.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// Returns measured times of steps where layers take half the time, and waits for collectives take
/// `waited`.
StepTimeComparison step_times_of(PredictedStep predicted, const std::vector<double>& seconds,
                                 double waited) {
  StepTimeComparison times(std::move(predicted));
  for (const double step : seconds)
    times.add_step(
        {.step_seconds = step, .data_wait_seconds = 0.5, .exposed_communication_seconds = waited},
        {.layers = 0.5 * (step - 0.5 - waited), .update = 0.1});
  return times;
}

PredictedStep predicted_step(double seconds, double communication) {
  return {StepTime{.seconds = seconds,
                   .layer_seconds = 0.5 * (seconds - communication),
                   .update_seconds = 0.1,
                   .collective_wait_seconds = communication},
          "m, measured today", ""};
}

TEST_CASE(
    "measured steps are compared with the prediction, without the first two and without waits for "
    "data") {
  const StepTimeComparison times =
      step_times_of(predicted_step(1.0, 0.1), {9, 9, 1.5, 1.6, 1.7}, 0.2);
  CHECK(times.text({}) ==
        "time of a step: 1 s predicted (m, measured today), 1.1 s measured (median of 3 steps): "
        "9.1 % less\n"
        "  layers: 0.45 s predicted, 0.45 s measured\n"
        "  update: 0.1 s predicted, 0.1 s measured\n"
        "  waits for collectives: 0.1 s predicted, 0.2 s measured\n"
        "  all else: 0.35 s predicted, 0.35 s measured");
  const auto record = times.manifest_values({.other_programs = 0.25, .stolen = 0.125});
  CHECK(record.at("predicted").at("step") == 1000000);
  CHECK(record.at("measured").at("step") == 1100000);
  CHECK(record.at("predicted").at("layers") == 450000);
  CHECK(record.at("measured").at("exposed_communication") == 200000);
  CHECK(record.at("measured").at("rest") == 350000);
  CHECK(record.at("load").at("others_per_million") == 250000);
  CHECK(record.at("load").at("stolen_per_million") == 125000);
}

/// Returns the last line of a text.
std::string last_line(const std::string& text) {
  return text.substr(text.rfind('\n') + 1);
}

TEST_CASE(
    "beyond a difference of 15 % the part that differs most is named, with other load on the "
    "machine") {
  const StepTimeComparison shorter = step_times_of(predicted_step(2.0, 0), {0, 0, 1.5}, 0);
  CHECK(last_line(shorter.text({})) ==
        "  most of the difference is in: layers; other work took less than 5 % of the cores");
  // Other load on the machine cannot make a step shorter.
  CHECK(last_line(shorter.text({.other_programs = 0.5})) ==
        "  most of the difference is in: layers; meanwhile other programs took 50 % of the "
        "cores");
  const StepTimeComparison longer = step_times_of(predicted_step(1.0, 0.1), {0, 0, 2.5}, 1.0);
  CHECK(last_line(longer.text({.other_programs = 0.3, .stolen = 0.1})) ==
        "  most of the difference is in: waits for collectives; meanwhile other programs took 30 % "
        "and other machines took 10 % of the cores, which explains some of it");
  CHECK(last_line(longer.text({.stolen = 0.06})) ==
        "  most of the difference is in: waits for collectives; meanwhile other machines took 6 % "
        "of the cores, which explains some of it");
  CHECK(step_times_of(predicted_step(1.0, 0.1), {0, 0, 1.6}, 0.1).text({}).find("most of") ==
        std::string::npos);
}

TEST_CASE("waits for other stages are a separate part") {
  StepTimeComparison times(
      {StepTime{.seconds = 1, .layer_seconds = 0.5, .pipeline_wait_seconds = 0.4}, "m", ""});
  for (int i = 0; i < 3; ++i)
    times.add_step({.step_seconds = 2}, {.layers = 0.5, .update = 0, .stage_wait = 1.5});
  CHECK(times.text({}).find("\n  waits for other stages: 0.4 s predicted, 1.5 s measured\n") !=
        std::string::npos);
  CHECK(last_line(times.text({})) ==
        "  most of the difference is in: waits for other stages; other work took less than 5 % of "
        "the cores");
  CHECK(times.manifest_values({}).at("measured").at("other_stages") == 1500000);
}

TEST_CASE("measured parts are means over the ranks of the first pipeline stage") {
  // Rank 1 is slower, so that rank 0 waits for it; rank 2 is in another stage.
  const PredictedStep predicted = predicted_step(1.0, 0.1);
  std::vector<StepTimeComparison> ranks;
  for (const double waited : {0.4, 0.0, 0.9})
    ranks.push_back(step_times_of(predicted, {9, 9, 1.5, 1.6, 1.7}, waited));
  std::vector<double> sums;
  const auto average = [&](size_t rank, const std::function<void(std::span<double>)>& sum) {
    ranks[rank].average_over_stage(rank < 2, sum);
  };
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    average(rank, [&](std::span<double> numbers) {
      sums.resize(numbers.size());
      for (size_t i = 0; i < numbers.size(); ++i) sums[i] += numbers[i];
    });
  average(0,
          [&](std::span<double> numbers) { std::copy(sums.begin(), sums.end(), numbers.begin()); });
  const auto measured = ranks[0].manifest_values({}).at("measured");
  CHECK(measured.at("exposed_communication") == 200000);
  CHECK(measured.at("layers") == 450000);
  CHECK(measured.at("step") == 1100000);
}

TEST_CASE("a step that was not predicted is measured, and a few steps give no result") {
  const PredictedStep none{std::nullopt, "", "nobody did"};
  CHECK(step_times_of(none, {9, 9, 1.5}, 0).text({}) ==
        "time of a step: 1 s measured (median of 1 step); not predicted: nobody did");
  const auto record = step_times_of(none, {9, 9, 1.5}, 0).manifest_values({});
  CHECK_FALSE(record.contains("predicted"));
  CHECK(record.at("measured").size() == 2);
  CHECK(step_times_of(none, {9, 9}, 0).text({}).empty());
  CHECK_FALSE(step_times_of(predicted_step(1, 0), {}, 0).manifest_values({}).contains("measured"));
}

TEST_CASE("only the last thousand steps count") {
  std::vector<double> seconds(2 + 1000, 1.5);
  seconds.resize(2 + 1000 + 600, 3.5);
  CHECK(step_times_of(predicted_step(3.0, 0), seconds, 0)
            .manifest_values({})
            .at("measured")
            .at("step") == 3000000);
}

}  // namespace
}  // namespace ftrun
