#include <cmath>
#include <cstring>
#include <limits>

#include "operation_runner.h"
#include "optimizers/optimizer_config.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

constexpr int kSteps = 20;
constexpr int64_t kCount = 1003;
using Floats = std::vector<float>;

OptimizerCase optimizer_case(double decay) {
  OptimizerCase c{random_floats(kCount, 1), {}, 3e-3, decay};
  for (int step = 0; step < kSteps; ++step)
    c.gradients.push_back(random_floats(kCount, 100 + static_cast<uint64_t>(step)));
  return c;
}

Array array_of(const std::vector<float>& v) {
  return {{static_cast<int64_t>(v.size())}, {v.begin(), v.end()}};
}

TEST_CASE("20 Adam and AdamW steps give torch.optim's parameters") {
  run_once_per_entry([] {
    for (const double decay : {0.0, 0.1})
      for (const bool decoupled : {true, false}) {
        const OptimizerCase c = optimizer_case(decay);
        std::vector<float> p = c.parameters, m(kCount, 0.0F), v(kCount, 0.0F);
        for (int step = 0; step < kSteps; ++step) {
          StepScalars s;
          s.learning_rate = static_cast<float>(c.learning_rate);
          s.bias_correction1 = static_cast<float>(1.0 - std::pow(0.9, step + 1));
          s.bias_correction2 = static_cast<float>(1.0 - std::pow(0.999, step + 1));
          // Gradients are 4 times too large, and the step scales them back.
          s.update_gradient_factor = 0.25F;
          std::vector<float> g = c.gradients[static_cast<size_t>(step)];
          for (float& x : g) x *= 4.0F;
          const OptimizerConfig config{
              .type = decoupled ? OptimizerType::kAdamW : OptimizerType::kAdam,
              .weight_decay = decay,
              .adam_w_mode = false};
          optimizer_update({.parameters = p.data(),
                            .gradients = g.data(),
                            .states = {m.data(), v.data()},
                            .count = kCount},
                           config, s);
        }
        CAPTURE(decay, decoupled);
        const auto expected = oracle_adam(c, decoupled, 0.9, 0.999, 1e-8);
        REQUIRE(relative_error(array_of(p), array_of(expected)) < 1e-6);
      }
  });
}

TEST_CASE("20 SGD steps give torch.optim's parameters") {
  struct Variant {
    double momentum, dampening;
    bool nesterov;
    double decay;
  };
  run_once_per_entry([] {
    for (const Variant& variant :
         {Variant{0, 0, false, 0.0}, Variant{0, 0, false, 0.05}, Variant{0.9, 0, false, 0.0},
          Variant{0.9, 0.3, false, 0.01}, Variant{0.9, 0, true, 0.01}}) {
      const OptimizerCase c = optimizer_case(variant.decay);
      std::vector<float> p = c.parameters, buffer(kCount, NAN);
      for (int step = 0; step < kSteps; ++step) {
        StepScalars s;
        s.learning_rate = static_cast<float>(c.learning_rate);
        s.update = step + 1;
        const OptimizerConfig config{.type = OptimizerType::kSgd,
                                     .weight_decay = variant.decay,
                                     .momentum = variant.momentum,
                                     .dampening = variant.dampening,
                                     .nesterov = variant.nesterov};
        optimizer_update({.parameters = p.data(),
                          .gradients = c.gradients[static_cast<size_t>(step)].data(),
                          .states = {variant.momentum == 0.0 ? nullptr : buffer.data()},
                          .count = kCount},
                         config, s);
      }
      CAPTURE(variant.momentum, variant.dampening, variant.nesterov, variant.decay);
      const auto expected = oracle_sgd(c, variant.momentum, variant.dampening, variant.nesterov);
      REQUIRE(relative_error(array_of(p), array_of(expected)) < 1e-6);
    }
  });
}

/// Returns the parameters after all steps, computed in double by the formula of DeepSpeed's
/// FusedLion.
std::vector<float> lion_in_double(const OptimizerCase& c, double beta1, double beta2) {
  std::vector<double> p(c.parameters.begin(), c.parameters.end()), m(p.size(), 0.0);
  for (const std::vector<float>& gradients : c.gradients)
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = static_cast<double>(gradients[i]),
                   direction = beta1 * m[i] + (1 - beta1) * g;
      const double after_decay = p[i] * (1 - c.learning_rate * c.weight_decay);
      p[i] = after_decay - c.learning_rate * static_cast<double>((direction > 0) - (direction < 0));
      m[i] = beta2 * m[i] + (1 - beta2) * g;
    }
  return {p.begin(), p.end()};
}

TEST_CASE("20 Lion steps give the parameters of its formula in double") {
  run_once_per_entry([] {
    for (const double decay : {0.0, 0.1}) {
      const OptimizerCase c = optimizer_case(decay);
      std::vector<float> p = c.parameters, m(kCount, 0.0F);
      for (const std::vector<float>& g : c.gradients) {
        StepScalars s;
        s.learning_rate = static_cast<float>(c.learning_rate);
        s.beta1 = 0.9;
        s.beta2 = 0.99;
        optimizer_update(
            {.parameters = p.data(), .gradients = g.data(), .states = {m.data()}, .count = kCount},
            {.type = OptimizerType::kLion, .weight_decay = decay}, s);
      }
      CAPTURE(decay);
      REQUIRE(relative_error(array_of(p), array_of(lion_in_double(c, 0.9, 0.99))) < 1e-6);
    }
  });
}

TEST_CASE("20 Adagrad steps give torch.optim's parameters") {
  struct Variant {
    double lr_decay, first, decay;
  };
  run_once_per_entry([] {
    for (const Variant& variant :
         {Variant{0, 0, 0}, Variant{0.1, 0, 0}, Variant{0, 0.5, 0}, Variant{0.1, 0.5, 0.1}}) {
      const OptimizerCase c = optimizer_case(variant.decay);
      std::vector<float> p = c.parameters, sum(kCount, static_cast<float>(variant.first));
      for (int step = 0; step < kSteps; ++step) {
        StepScalars s;
        s.learning_rate = static_cast<float>(c.learning_rate);
        s.update = step + 1;
        optimizer_update({.parameters = p.data(),
                          .gradients = c.gradients[static_cast<size_t>(step)].data(),
                          .states = {sum.data()},
                          .count = kCount},
                         {.type = OptimizerType::kAdagrad,
                          .eps = 1e-10,
                          .weight_decay = variant.decay,
                          .lr_decay = variant.lr_decay},
                         s);
      }
      CAPTURE(variant.lr_decay, variant.first, variant.decay);
      REQUIRE(relative_error(array_of(p),
                             array_of(oracle_adagrad(c, variant.lr_decay, variant.first))) < 1e-6);
    }
  });
}

TEST_CASE("Lion does not change a parameter without gradient and moment") {
  run_once_per_entry([] {
    Floats p(20, 0.5F), g(20, 0.0F), m(20, 0.0F);
    StepScalars s;
    s.learning_rate = 0.1F;
    optimizer_update(
        {.parameters = p.data(), .gradients = g.data(), .states = {m.data()}, .count = 20},
        {.type = OptimizerType::kLion}, s);
    REQUIRE(p == Floats(20, 0.5F));
  });
}

TEST_CASE("the sum of squares is exact to fp64 rounding, over any length") {
  run_once_per_entry([] {
    for (const int64_t count :
         {int64_t{0}, int64_t{1}, int64_t{31}, kGradientNormGroup, 3 * kGradientNormGroup + 77}) {
      const std::vector<float> g = random_floats(count, 7);
      double expected = 0.0;
      for (const float x : g) expected += static_cast<double>(x) * static_cast<double>(x);
      REQUIRE(sum_of_squares(g.data(), DType::kF32, count) == Approx(expected).epsilon(1e-13));
    }
  });
}

/// Returns the sum in the order that gradient_norm_blocks.h defines.
double sum_of_blocks(const std::vector<float>& g) {
  const auto count = static_cast<int64_t>(g.size());
  const auto sum_of_block = [&](int64_t begin) {
    double sums[kGradientNormSums] = {};
    for (int64_t i = begin; i < std::min(begin + kGradientNormBlock, count); ++i) {
      const double x = static_cast<double>(g[static_cast<size_t>(i)]);
      sums[i % kGradientNormSums] += x * x;
    }
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) +
           ((sums[1] + sums[5]) + (sums[3] + sums[7]));
  };
  double total = 0.0;
  for (int64_t group = 0; group < count; group += kGradientNormGroup) {
    double quarters[kGradientNormQuarters] = {};
    for (int q = 0; q < kGradientNormQuarters; ++q)
      for (int64_t at = 0; at < kGradientNormGroup / kGradientNormQuarters;
           at += kGradientNormBlock)
        quarters[q] += sum_of_block(group + q * (kGradientNormGroup / kGradientNormQuarters) + at);
    total += (quarters[0] + quarters[2]) + (quarters[1] + quarters[3]);
  }
  return total;
}

TEST_CASE("the sum of squares adds within blocks first, then quarters and groups of blocks") {
  run_once_per_entry([] {
    for (const int64_t count :
         {int64_t{1}, int64_t{7}, kGradientNormBlock, kGradientNormBlock + 3,
          kGradientNormGroup - 1, kGradientNormGroup, 3 * kGradientNormGroup + 1500}) {
      CAPTURE(count);
      const std::vector<float> g = random_floats(count, 19);
      const double sum = sum_of_squares(g.data(), DType::kF32, count);
      const double expected = sum_of_blocks(g);
      REQUIRE(std::memcmp(&sum, &expected, sizeof sum) == 0);
    }
  });
}

TEST_CASE("the sum of squares has the same bits on every CPU and for any number of threads") {
  const std::vector<float> g = random_floats(300 * kGradientNormGroup + 5, 11);
  std::vector<double> sums;
  run_once_per_entry([&] {
    for (const int threads : {1, 2, 3}) {
      set_kernel_threads(threads);
      sums.push_back(sum_of_squares(g.data(), DType::kF32, static_cast<int64_t>(g.size())));
    }
  });
  for (const double sum : sums) REQUIRE(std::memcmp(&sum, sums.data(), sizeof sum) == 0);
}

TEST_CASE("NaN and infinity anywhere make the sum of squares non-finite") {
  run_once_per_entry([] {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
      for (const size_t at : {size_t{0}, size_t{4095}, size_t{5000}, size_t{8199}}) {
        std::vector<float> g = random_floats(8200, 3);
        g[at] = bad;
        REQUIRE_FALSE(std::isfinite(sum_of_squares(g.data(), DType::kF32, 8200)));
      }
  });
}

}  // namespace
}  // namespace ftrun::testing
