#include "training/loss_scaler.h"

#include <vector>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// Returns a loss scale of 256 that doubles after three finite steps, with hysteresis 2.
Config scale_options(int64_t stage) {
  Config config;
  config.zero.stage = stage;
  config.fp16.enabled = true;
  config.fp16.initial_scale_power = 8;
  config.fp16.loss_scale_window = 3;
  config.fp16.hysteresis = 2;
  return config;
}

/// Returns the scale after each step; a 1 in `overflows` is an overflow.
std::vector<double> scales_after_steps(const Config& config, const std::vector<int>& overflows) {
  LossScaler scaler(config);
  std::vector<double> all;
  for (const int overflow : overflows) {
    scaler.update(overflow == 1);
    all.push_back(scaler.scale());
  }
  return all;
}

const std::vector<int> kMixed{1, 0, 1, 0, 0, 0, 0, 0, 1, 1};

// DeepSpeed's DynamicLossScaler printed the expected scales of stages 1 to 3.

TEST_CASE("the first doubling takes one finite step more than the window, later ones the window") {
  for (const int64_t stage : {0, 1, 2, 3})
    REQUIRE(scales_after_steps(scale_options(stage), std::vector<int>(10, 0)) ==
            std::vector<double>{256, 256, 256, 512, 512, 512, 1024, 1024, 1024, 2048});
}

TEST_CASE("hysteresis ignores overflows before the scale is halved, at stages 1 to 3") {
  for (const int64_t stage : {1, 2, 3})
    REQUIRE(scales_after_steps(scale_options(stage), kMixed) ==
            std::vector<double>{256, 256, 128, 128, 128, 128, 256, 256, 256, 128});
}

TEST_CASE("consecutive hysteresis is full again after every clean step") {
  Config config = scale_options(2);
  config.fp16.consecutive_hysteresis = true;
  REQUIRE(scales_after_steps(config, kMixed) ==
          std::vector<double>{256, 256, 256, 256, 256, 256, 512, 512, 512, 256});
}

TEST_CASE("stage 0 halves the scale at every overflow, whatever the hysteresis") {
  // The first overflow halves to 128, the third step halves again; 4 finite steps after that (k =
  // 3), the scale doubles.
  const std::vector<double> expected{128, 128, 64, 64, 64, 64, 128, 128, 64, 32};
  for (const bool consecutive : {false, true})
    for (const int64_t hysteresis : {1, 2, 7}) {
      Config config = scale_options(0);
      config.fp16.hysteresis = hysteresis;
      config.fp16.consecutive_hysteresis = consecutive;
      REQUIRE(scales_after_steps(config, kMixed) == expected);
    }
}

TEST_CASE("with hysteresis 1, stages 1 to 3 halve the scale at every overflow") {
  Config config = scale_options(3);
  config.fp16.hysteresis = 1;
  REQUIRE(scales_after_steps(config, kMixed) == scales_after_steps(scale_options(0), kMixed));
}

TEST_CASE("hysteresis that is used up is refilled only when the scale doubles") {
  // Overflows at steps 1 (which uses it up), 2, 3 and 5 halve the scale; doubling after step 9
  // refills it.
  REQUIRE(scales_after_steps(scale_options(1), {1, 1, 1, 0, 1, 0, 0, 0, 0, 1, 1}) ==
          std::vector<double>{256, 128, 64, 64, 32, 32, 32, 32, 64, 64, 32});
}

TEST_CASE("an overflow at the smallest scale ends the run at stages 1 to 3") {
  Config config = scale_options(2);
  config.fp16.hysteresis = 1;
  config.fp16.min_loss_scale = 100;
  LossScaler scaler(config);
  REQUIRE(scaler.expects_overflow());
  scaler.update(true);
  REQUIRE(scaler.scale() == 128);
  scaler.update(true);
  REQUIRE(scaler.scale() == 100);
  REQUIRE_FALSE(scaler.expects_overflow());
  REQUIRE_FALSE(scaler.is_exhausted());
  scaler.update(true);
  REQUIRE(scaler.is_exhausted());
}

TEST_CASE("hysteresis ignores overflows at the smallest scale as at any other") {
  Config config = scale_options(1);
  config.fp16.initial_scale_power = 0;
  config.fp16.hysteresis = 3;
  LossScaler scaler(config);
  scaler.update(true);
  scaler.update(true);
  REQUIRE(scaler.scale() == 1);
  REQUIRE_FALSE(scaler.is_exhausted());
  scaler.update(true);
  REQUIRE(scaler.is_exhausted());
}

TEST_CASE("at stage 0 an overflow at the smallest scale does not end the run") {
  Config config = scale_options(0);
  config.fp16.initial_scale_power = 1;
  REQUIRE(scales_after_steps(config, {1, 1, 1, 0, 0, 0, 0}) ==
          std::vector<double>{1, 1, 1, 1, 1, 1, 2});
}

TEST_CASE("a static scale never changes, and no overflow is expected") {
  Config config = scale_options(2);
  config.fp16.loss_scale = 1000;
  LossScaler scaler(config);
  REQUIRE_FALSE(scaler.expects_overflow());
  for (int i = 0; i < 10; ++i) {
    scaler.update(i % 2 == 0);
    REQUIRE(scaler.scale() == 1000);
  }
}

TEST_CASE("without fp16 the scale is 1 and checkpoints keep no state of it") {
  Config config = scale_options(3);
  config.fp16.enabled = false;
  LossScaler scaler(config);
  for (int i = 0; i < 10; ++i) scaler.update(i % 2 == 0);
  REQUIRE(scaler.scale() == 1);
  REQUIRE_FALSE(scaler.expects_overflow());
  REQUIRE_FALSE(scaler.state().has_value());
}

TEST_CASE("a scaler restored at any step continues like one that was never stopped") {
  const std::vector<int> overflows{1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0};
  for (const int64_t stage : {0, 2})
    for (const bool consecutive : {false, true}) {
      Config config = scale_options(stage);
      config.fp16.consecutive_hysteresis = consecutive;
      const std::vector<double> expected = scales_after_steps(config, overflows);
      for (size_t stop = 0; stop < overflows.size(); ++stop) {
        LossScaler first(config);
        for (size_t i = 0; i < stop; ++i) first.update(overflows[i] == 1);
        LossScaler second(config);
        second.restore(first.state().value());
        for (size_t i = stop; i < overflows.size(); ++i) {
          second.update(overflows[i] == 1);
          REQUIRE(second.scale() == expected[i]);
        }
      }
    }
}

TEST_CASE("a static scale in the config wins over the saved one") {
  LossScaler dynamic(scale_options(2));
  Config config = scale_options(2);
  config.fp16.loss_scale = 64;
  LossScaler scaler(config);
  scaler.restore(dynamic.state().value());
  REQUIRE(scaler.scale() == 64);
}

}  // namespace
}  // namespace ftrun
