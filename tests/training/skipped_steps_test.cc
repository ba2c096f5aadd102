#include "training/skipped_steps.h"

#include <optional>
#include <string>

#include "base/error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

const std::string kPlace = "rank 1, forward layer 2 mb 0 (layers.1): sum";

/// Returns a config that stops a run at the third consecutive step that is not finite.
Config limit_of_three() {
  Config config;
  config.train.max_nonfinite_steps = 3;
  return config;
}

/// Returns a dynamic scale of 4 that every overflow halves, down to 1.
Config small_scale_config() {
  Config config = limit_of_three();
  config.zero.stage = 1;
  config.fp16.enabled = true;
  config.fp16.initial_scale_power = 2;
  config.fp16.hysteresis = 1;
  return config;
}

/// Returns "code: message | remedy" of the error, "" if the run may continue.
std::string refusal(const SkippedSteps& skipped, int64_t step) {
  try {
    skipped.refuse_too_many(step);
    return "";
  } catch (const Error& error) {
    return cat(static_cast<int>(error.code()), ": ", error.message(), " | ", error.remedy());
  }
}

/// Counts a step that is not finite as the trainer does, which searches for the place only if the
/// count needs it.
std::string add_nonfinite_step(SkippedSteps& skipped, int64_t step, const std::string& found) {
  return skipped.add_step(step, false,
                          skipped.needs_nonfinite_search()
                              ? std::optional(NonfiniteSearchResult{.location = found})
                              : std::nullopt);
}

TEST_CASE(
    "consecutive steps that are not finite are counted, and the place of the first one is named") {
  SkippedSteps skipped(limit_of_three());
  REQUIRE(skipped.needs_nonfinite_search());
  REQUIRE(add_nonfinite_step(skipped, 7, kPlace) ==
          "step 7: the loss or the gradient is not finite; the update was skipped (1 in a row): "
          "first met by " +
              kPlace);
  REQUIRE_FALSE(skipped.needs_nonfinite_search());
  REQUIRE(add_nonfinite_step(skipped, 8, "elsewhere") ==
          "step 8: the loss or the gradient is not finite; the update was skipped (2 in a row): "
          "first met by " +
              kPlace);
  REQUIRE(refusal(skipped, 8) == "");
  REQUIRE(add_nonfinite_step(skipped, 9, "elsewhere") ==
          "step 9: the loss or the gradient is not finite; the update was skipped (3 in a row): "
          "first met by " +
              kPlace);
  REQUIRE(refusal(skipped, 9) ==
          "7: step 9: the loss or the gradient was not finite for 3 steps in a row: first met by " +
              kPlace +
              " | lower the learning rate, check the data of these steps, or raise "
              "train.max_nonfinite_steps");
  REQUIRE(skipped.total() == 3);
}

TEST_CASE("after a finite step, the next step that is not finite is searched again") {
  SkippedSteps skipped(limit_of_three());
  add_nonfinite_step(skipped, 1, kPlace);
  add_nonfinite_step(skipped, 2, kPlace);
  REQUIRE(skipped.add_step(3, true, std::nullopt) == "");
  REQUIRE(skipped.needs_nonfinite_search());
  REQUIRE(add_nonfinite_step(skipped, 4, "rank 0, elsewhere") ==
          "step 4: the loss or the gradient is not finite; the update was skipped (1 in a row): "
          "first met by rank 0, elsewhere");
  REQUIRE(refusal(skipped, 4) == "");
  REQUIRE(skipped.total() == 3);
}

TEST_CASE("if only a sum of gradients is not finite, consecutive such steps are searched once") {
  SkippedSteps skipped(limit_of_three());
  const std::string no_layer =
      ": every layer's values are finite; the overflow is in the gradient sum";
  REQUIRE(add_nonfinite_step(skipped, 1, "") ==
          "step 1: the loss or the gradient is not finite; the update was skipped (1 in a row)" +
              no_layer);
  REQUIRE_FALSE(skipped.needs_nonfinite_search());
  REQUIRE(add_nonfinite_step(skipped, 2, kPlace) ==
          "step 2: the loss or the gradient is not finite; the update was skipped (2 in a row)" +
              no_layer);
  skipped.add_step(3, true, std::nullopt);
  REQUIRE(skipped.needs_nonfinite_search());
}

TEST_CASE("a step that is finite when it is run again is counted and reported as such") {
  SkippedSteps skipped(limit_of_three());
  REQUIRE(skipped.add_step(1, false, NonfiniteSearchResult{.repeat_is_finite = true}) ==
          "step 1: the loss or the gradient is not finite; the update was skipped (1 in a row): "
          "re-running the step gave finite values, so this machine is not deterministic");
  REQUIRE_FALSE(skipped.needs_nonfinite_search());
  REQUIRE(skipped.total() == 1);
}

TEST_CASE("the message about a limit of one step is in the singular") {
  Config config;
  config.train.max_nonfinite_steps = 1;
  SkippedSteps skipped(config);
  REQUIRE(skipped.add_step(5, false, std::nullopt) ==
          "step 5: the loss or the gradient is not finite; the update was skipped (1 in a row)");
  REQUIRE(refusal(skipped, 5) ==
          "7: step 5: the loss or the gradient was not finite for 1 step | lower the learning "
          "rate, check the data of these steps, or raise train.max_nonfinite_steps");
}

TEST_CASE("overflows that lower the loss scale do not count as steps that are not finite") {
  Config config = small_scale_config();
  config.fp16.initial_scale_power = 20;
  SkippedSteps skipped(config);
  for (int64_t step = 1; step <= 10; ++step) {
    const double scale = skipped.loss_scale();
    REQUIRE_FALSE(skipped.needs_nonfinite_search());
    const std::string warning = skipped.add_step(step, false, std::nullopt);
    REQUIRE(skipped.loss_scale() == scale / 2);
    if (step == 1)
      REQUIRE(warning ==
              "step 1: the gradients overflow at loss scale 1.04858e+06; the update was skipped, "
              "the next scale is 524288");
    REQUIRE(refusal(skipped, step) == "");
  }
  REQUIRE(skipped.total() == 10);
}

TEST_CASE("an overflow at the smallest scale ends the run, with its place") {
  SkippedSteps skipped(small_scale_config());
  REQUIRE(add_nonfinite_step(skipped, 1, kPlace) ==
          "step 1: the gradients overflow at loss scale 4; the update was skipped, the next scale "
          "is 2");
  REQUIRE(add_nonfinite_step(skipped, 2, kPlace) ==
          "step 2: the gradients overflow at loss scale 2; the update was skipped, the next scale "
          "is 1");
  REQUIRE(refusal(skipped, 2) == "");
  REQUIRE(skipped.needs_nonfinite_search());
  REQUIRE(add_nonfinite_step(skipped, 3, kPlace) ==
          "step 3: the loss or the gradient is not finite; the update was skipped (1 in a row): "
          "first met by " +
              kPlace);
  REQUIRE(refusal(skipped, 3) ==
          "7: step 3: the gradients overflow at the smallest loss scale (1): first met by " +
              kPlace + " | lower the learning rate, train in bf16, or lower fp16.min_loss_scale");
}

TEST_CASE("overflows with a static loss scale count as steps that are not finite") {
  Config config = small_scale_config();
  config.fp16.loss_scale = 1024;
  SkippedSteps skipped(config);
  for (int64_t step = 1; step <= 3; ++step) {
    REQUIRE(refusal(skipped, step) == "");
    add_nonfinite_step(skipped, step, kPlace);
  }
  REQUIRE(skipped.loss_scale() == 1024);
  REQUIRE(
      refusal(skipped, 3)
          .starts_with("7: step 3: the loss or the gradient was not finite for 3 steps in a row"));
}

TEST_CASE("a resumed run keeps the total, the loss scale and the count of consecutive steps") {
  SkippedSteps before(small_scale_config());
  for (int64_t step = 1; step <= 2; ++step) add_nonfinite_step(before, step, kPlace);
  SkippedSteps after(small_scale_config());
  after.restore(before.total(), before.scaler_state());
  REQUIRE(after.total() == 2);
  REQUIRE(after.loss_scale() == 1);
  REQUIRE(after.needs_nonfinite_search());
  add_nonfinite_step(after, 3, kPlace);
  REQUIRE(after.total() == 3);
  REQUIRE(refusal(after, 3).starts_with(
      "7: step 3: the gradients overflow at the smallest loss scale (1)"));
  SkippedSteps plain(limit_of_three());
  plain.restore(5, std::nullopt);
  REQUIRE(plain.total() == 5);
  REQUIRE_FALSE(plain.scaler_state().has_value());
  REQUIRE(refusal(plain, 5) == "");

  SkippedSteps two(limit_of_three());
  for (int64_t step = 1; step <= 2; ++step) add_nonfinite_step(two, step, kPlace);
  REQUIRE(two.consecutive() == 2);
  SkippedSteps third(limit_of_three());
  third.restore(two.total(), two.scaler_state(), two.consecutive());
  REQUIRE(third.needs_nonfinite_search());  // the place of the first is not known anymore
  add_nonfinite_step(third, 3, "rank 0, elsewhere");
  REQUIRE(
      refusal(third, 3).starts_with("7: step 3: the loss or the gradient was not finite for 3 "
                                    "steps in a row: first met by rank 0"));
  third.restore(two.total(), two.scaler_state(), two.consecutive());
  third.add_step(3, true, std::nullopt);
  REQUIRE(third.consecutive() == 0);
}

TEST_CASE("of ranks that share sequences, those that met the value first are named") {
  const auto places = [](const std::vector<NonfiniteReport>& ranks) {
    std::vector<std::string> words;
    for (const NonfiniteReport& rank : ranks) words.push_back(encode_nonfinite_report(rank));
    return nonfinite_locations(words);
  };
  CHECK(places({{}, {-1, 1, ""}}) == "");
  CHECK(places({{7, 0, "late"}, {5, 0, "early; twice"}}) == "rank 1, early; twice");
  CHECK(places({{5, 0, "a"}, {5, 0, "b"}, {7, 0, "c"}}) == "rank 0, a; rank 1, b");
  // Ranks with other sequences may have found the value in these.
  CHECK(places({{7, 0, "a"}, {9, 0, "b"}, {6, 1, "c"}, {-1, 1, ""}}) == "rank 2, c; rank 0, a");
}

}  // namespace
}  // namespace ftrun
