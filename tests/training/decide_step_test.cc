#include "training/decide_step.h"

#include <cmath>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

StepSums sums_of(double loss, double norm) {
  return {.loss_sum = loss, .counted_tokens = 8, .gradient_norm = norm};
}

TEST_CASE("a gradient longer than the clipping norm is scaled to it, a shorter one is left") {
  const StepDecision longer = decide_step(sums_of(1, 4), {.clip_norm = 1});
  REQUIRE(longer.finite);
  REQUIRE(longer.gradient_norm == 4);
  REQUIRE(longer.update_gradient_factor == static_cast<float>(1.0 / (4.0 + 1e-6)));
  REQUIRE(decide_step(sums_of(1, 4), {.clip_norm = 5}).update_gradient_factor == 1.0F);
}

TEST_CASE("a clipping norm of zero does not clip") {
  REQUIRE(decide_step(sums_of(1, 4e9), {.clip_norm = 0}).update_gradient_factor == 1.0F);
}

TEST_CASE("gradients that are stored multiplied by a factor are clipped by their true norm") {
  const StepDecision scaled =
      decide_step(sums_of(1, 4096), {.gradient_divisor = 1024, .clip_norm = 1});
  REQUIRE(scaled.gradient_norm == 4);
  REQUIRE(scaled.update_gradient_factor == static_cast<float>(1.0 / (4.0 + 1e-6) / 1024));
  REQUIRE(decide_step(sums_of(1, 4096), {.gradient_divisor = 1024}).update_gradient_factor ==
          1.0F / 1024);
}

TEST_CASE("a loss or a norm that is not finite skips the step") {
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    REQUIRE_FALSE(decide_step(sums_of(bad, 4), {.clip_norm = 1}).finite);
    REQUIRE_FALSE(decide_step(sums_of(1, bad), {.clip_norm = 1}).finite);
  }
}

}  // namespace
}  // namespace ftrun
