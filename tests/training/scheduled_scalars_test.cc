#include "training/scheduled_scalars.h"

#include <cmath>

#include "config/learning_rate.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// Returns a parameter that began as 1 after one step with gradient 0.5 and rate 0.125.
float parameter_after_step(const OptimizerConfig& config) {
  float parameter = 1.0F, gradient = 0.5F, first = 0.0F, second = 0.0F;
  StepScalars scalars = scheduled_scalars(config, {SchedulerConfig{}, 1}, 1);
  scalars.learning_rate = 0.125F;
  optimizer_update(
      {.parameters = &parameter, .gradients = &gradient, .states = {&first, &second}, .count = 1},
      config, scalars);
  return parameter;
}

TEST_CASE("Adam's decay is added to the gradient unless adam_w_mode, AdamW's never is") {
  OptimizerConfig config;
  config.weight_decay = 0.25;
  config.type = OptimizerType::kAdamW;
  const float decoupled = parameter_after_step(config);
  REQUIRE(decoupled == Approx(1 - 0.125 * 0.25 - 0.125).epsilon(1e-5));
  config.adam_w_mode = false;
  REQUIRE(parameter_after_step(config) == decoupled);
  config.type = OptimizerType::kAdam;
  REQUIRE(parameter_after_step(config) == Approx(1 - 0.125).epsilon(1e-5));
  config.adam_w_mode = true;
  REQUIRE(parameter_after_step(config) == decoupled);
}

TEST_CASE(
    "the scalars of a step: rate, betas in double, and bias corrections of the applied steps") {
  OptimizerConfig config;
  config.lr = 0.125;
  config.betas = {0.9, 0.999};
  SchedulerConfig constant;
  constant.type = SchedulerType::kConstant;
  for (const int64_t k : {1, 2, 1000}) {
    const StepScalars scalars = scheduled_scalars(config, {constant, 1000}, k);
    REQUIRE(scalars.learning_rate == 0.125F);
    REQUIRE(scalars.update == k);
    REQUIRE(scalars.beta1 == 0.9);
    REQUIRE(scalars.beta2 == 0.999);
    REQUIRE(scalars.bias_correction1 ==
            static_cast<float>(1 - std::pow(0.9, static_cast<double>(k))));
    REQUIRE(scalars.bias_correction2 ==
            static_cast<float>(1 - std::pow(0.999, static_cast<double>(k))));
  }
  config.bias_correction = false;
  REQUIRE(scheduled_scalars(config, {constant, 1000}, 1).bias_correction1 == 1.0F);
  REQUIRE(scheduled_scalars(config, {constant, 1000}, 1).bias_correction2 == 1.0F);
}

TEST_CASE("a schedule that cycles the momentum replaces beta1") {
  OptimizerConfig config;
  config.betas = {0.9, 0.99};
  SchedulerConfig cycle;
  cycle.type = SchedulerType::kOneCycle;
  cycle.cycle_min_lr = 0.1;
  cycle.cycle_max_lr = 0.2;
  cycle.cycle_first_step_size = 4;
  cycle.cycle_second_step_size = 4;
  cycle.cycle_momentum = true;
  cycle.cycle_min_mom = 0.5;
  cycle.cycle_max_mom = 0.75;
  const StepScalars scalars = scheduled_scalars(config, {cycle, 8}, 6);
  const ScheduledRate rate = scheduled_rate(cycle, config, 6);
  REQUIRE(scalars.beta1 == rate.beta1.value());
  REQUIRE(scalars.beta1 != 0.9);
}

}  // namespace
}  // namespace ftrun
