// These tests run optimizer steps on 16-bit gradients, with 16-bit copies of the parameters and
// with bf16 state.
#include <cmath>
#include <cstring>

#include "operation_runner.h"
#include "optimizers/optimizer_config.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

constexpr int64_t kMixedCount = 1003;
using Floats = std::vector<float>;
using Halves = std::vector<uint16_t>;

Halves to_halves(const Floats& values, DType dtype) {
  Halves out(values.size());
  convert(values.data(), DType::kF32, out.data(), dtype, static_cast<int64_t>(values.size()));
  return out;
}

Floats to_floats(const Halves& values, DType dtype) {
  Floats out(values.size());
  convert(values.data(), dtype, out.data(), DType::kF32, static_cast<int64_t>(values.size()));
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Runs a step of Adam, or of SGD with momentum, with weight decay.
void run_optimizer_step(bool adam, const FlatUpdate& update, const StepScalars& scalars) {
  if (adam)
    optimizer_update(update, {.weight_decay = 0.1}, scalars);
  else
    optimizer_update(
        update,
        {.type = OptimizerType::kSgd, .weight_decay = 0.1, .momentum = 0.9, .nesterov = true},
        scalars);
}

StepScalars scalars_of(int step) {
  StepScalars s;
  s.learning_rate = 3e-3F;
  s.update_gradient_factor = 0.5F;
  s.update = step + 2;  // not the first step, which only initializes SGD's momentum
  s.bias_correction1 = static_cast<float>(1.0 - std::pow(0.9, step + 1));
  s.bias_correction2 = static_cast<float>(1.0 - std::pow(0.999, step + 1));
  s.rounding_key = rounding_key(17, step);
  return s;
}

TEST_CASE(
    "a 16-bit gradient gives the bits that the same numbers in fp32 give, and the copy is "
    "rounded") {
  run_once_per_entry([] {
    for (const bool adam : {true, false})
      for (const DType gradient : {DType::kBF16, DType::kF16})
        for (const DType copy : {DType::kBF16, DType::kF16}) {
          CAPTURE(adam, dtype_name(gradient), dtype_name(copy));
          const Halves g = to_halves(random_floats(kMixedCount, 1), gradient);
          const Floats wide = to_floats(g, gradient);
          Floats p = random_floats(kMixedCount, 2), m(kMixedCount, 0.25F), v(kMixedCount, 0.5F);
          Floats p2 = p, m2 = m, v2 = v;
          Halves c(kMixedCount);
          run_optimizer_step(adam,
                             {.parameters = p.data(),
                              .gradients = g.data(),
                              .gradient_dtype = gradient,
                              .states = {m.data(), v.data()},
                              .copy = c.data(),
                              .copy_dtype = copy,
                              .count = kMixedCount},
                             scalars_of(0));
          run_optimizer_step(adam,
                             {.parameters = p2.data(),
                              .gradients = wide.data(),
                              .states = {m2.data(), v2.data()},
                              .count = kMixedCount},
                             scalars_of(0));
          REQUIRE(same_bits(p, p2));
          REQUIRE(same_bits(m, m2));
          REQUIRE(same_bits(v, v2));
          REQUIRE(same_bits(c, to_halves(p, copy)));
        }
  });
}

TEST_CASE("20 steps on bf16 gradients give torch.optim's results for the same gradients") {
  run_once_per_entry([] {
    OptimizerCase c{random_floats(kMixedCount, 1), {}, 3e-3, 0.1};
    std::vector<Halves> gradients;
    for (int i = 0; i < 20; ++i) {
      gradients.push_back(
          to_halves(random_floats(kMixedCount, 100 + static_cast<uint64_t>(i)), DType::kBF16));
      Floats half = to_floats(gradients.back(), DType::kBF16);
      for (float& x : half) x *= 0.5F;  // the factor that the step applies to gradients
      c.gradients.push_back(half);
    }
    Floats p = c.parameters, m(kMixedCount, 0.0F), v(kMixedCount, 0.0F);
    for (int i = 0; i < 20; ++i)
      run_optimizer_step(true,
                         {.parameters = p.data(),
                          .gradients = gradients[static_cast<size_t>(i)].data(),
                          .gradient_dtype = DType::kBF16,
                          .states = {m.data(), v.data()},
                          .count = kMixedCount},
                         scalars_of(i));
    const Floats expected = oracle_adam(c, true, 0.9, 0.999, 1e-8);
    REQUIRE(relative_error({{kMixedCount}, {p.begin(), p.end()}},
                           {{kMixedCount}, {expected.begin(), expected.end()}}) < 1e-6);
  });
}

TEST_CASE("a copy in fp32 has the parameters' bits, wherever it begins") {
  run_once_per_entry([] {
    for (const size_t shift : {0, 1, 5}) {
      Floats p = random_floats(kMixedCount, 2), copy(kMixedCount + 16, 0.0F);
      const Floats g = random_floats(kMixedCount, 1);
      optimizer_update({.parameters = p.data(),
                        .gradients = g.data(),
                        .copy = copy.data() + shift,
                        .copy_dtype = DType::kF32,
                        .count = kMixedCount},
                       {.type = OptimizerType::kSgd, .weight_decay = 0.1}, scalars_of(0));
      REQUIRE(std::memcmp(copy.data() + shift, p.data(), p.size() * sizeof(float)) == 0);
      REQUIRE(copy[shift + kMixedCount] == 0.0F);
    }
  });
}

// --- stochastic rounding -------------------------------------------------------------------------

/// Parameters and state of one optimizer, all in bf16.
struct State {
  explicit State(int64_t count)
      : p(to_halves(random_floats(count, 2), DType::kBF16)),
        m(to_halves(random_floats(count, 3), DType::kBF16)),
        v(to_halves(Floats(static_cast<size_t>(count), 0.37F), DType::kBF16)),
        g(to_halves(random_floats(count, 4), DType::kBF16)) {}

  /// Updates elements [begin, end); their indices in the model begin at first_element + begin.
  void update(bool adam, int64_t begin, int64_t end, int64_t first_element,
              const StepScalars& scalars) {
    run_optimizer_step(adam,
                       {.parameters = p.data() + begin,
                        .parameter_dtype = DType::kBF16,
                        .gradients = g.data() + begin,
                        .gradient_dtype = DType::kBF16,
                        .states = {m.data() + begin, v.data() + begin},
                        .state_dtype = DType::kBF16,
                        .count = end - begin,
                        .first_element = first_element + begin},
                       scalars);
  }

  Halves p, m, v, g;
};

/// ExactStep holds the results of the same step in fp32, without rounding to bf16.
struct ExactStep {
  ExactStep(const State& s, bool adam, const StepScalars& scalars)
      : p(to_floats(s.p, DType::kBF16)),
        m(to_floats(s.m, DType::kBF16)),
        v(to_floats(s.v, DType::kBF16)) {
    run_optimizer_step(adam,
                       {.parameters = p.data(),
                        .gradients = s.g.data(),
                        .gradient_dtype = DType::kBF16,
                        .states = {m.data(), v.data()},
                        .count = static_cast<int64_t>(p.size())},
                       scalars);
  }
  Floats p, m, v;
};

/// Appends the rounding errors, in units in the last place of bf16, to `errors`; requires that each
/// is less than one unit.
void add_errors(const Halves& actual, const Floats& exact, std::vector<double>& errors) {
  for (size_t i = 0; i < exact.size(); ++i) {
    const double x = static_cast<double>(exact[i]);
    const double unit = std::ldexp(1.0, std::ilogb(x) - 7);
    const double error = (number_of(actual[i], DType::kBF16) - x) / unit;
    if (!(std::abs(error) < 1.0)) FAIL("rounded by " << error << " steps");
    errors.push_back(error);
  }
}

double mean_of(const std::vector<double>& v) {
  double sum = 0.0;
  for (const double x : v) sum += x;
  return sum / static_cast<double>(v.size());
}

/// Returns the mean of a[i] b[i + shift], which is about 0 if the two are independent.
double correlation(const std::vector<double>& a, const std::vector<double>& b, size_t shift) {
  double sum = 0.0;
  for (size_t i = 0; i + shift < a.size(); ++i) sum += a[i] * b[i + shift];
  return sum / static_cast<double>(a.size());
}

TEST_CASE("bf16 state is rounded to a neighbor, without bias and without pattern") {
  constexpr int64_t kMany = 200000;
  for (const bool adam : {true, false}) {
    CAPTURE(adam);
    std::vector<double> p, m, v;
    for (int i = 0; i < 2; ++i) {
      State state(kMany);
      StepScalars scalars = scalars_of(0);
      const ExactStep exact(state, adam, scalars);
      scalars.rounding_key = rounding_key(17, i);
      state.update(adam, 0, kMany, 1 << 20, scalars);
      add_errors(state.p, exact.p, p);
      add_errors(state.m, exact.m, m);
      if (adam) add_errors(state.v, exact.v, v);
    }
    // The variance of an error is at most 1/6; the bound is 5 standard deviations of the mean.
    const double bound = 5.0 * std::sqrt(1.0 / 6.0 / (2.0 * kMany));
    std::vector<std::vector<double>*> all{&p, &m};
    if (adam) all.push_back(&v);
    for (const auto* a : all) {
      REQUIRE(std::abs(mean_of(*a)) < bound);
      // The shifts compare neighbors, other lanes, other blocks, and the next step (kMany elements
      // later).
      for (const size_t shift : {1, 8, 16, 1 << 16, static_cast<int>(kMany)})
        REQUIRE(std::abs(correlation(*a, *a, shift)) < bound);
      for (const auto* b : all)
        if (a != b) REQUIRE(std::abs(correlation(*a, *b, 0)) < bound);
    }
    // The rounding is really stochastic, not to the nearest number.
    double largest = 0.0;
    for (const double error : p) largest = std::max(largest, std::abs(error));
    REQUIRE(largest > 0.99);
  }
}

TEST_CASE("stochastic rounding does not depend on threads, on how ranges are cut or on the CPU") {
  constexpr int64_t kMany = 300001, kFirst = 65500;
  for (const bool adam : {true, false}) {
    CAPTURE(adam);
    State whole(kMany);
    whole.update(adam, 0, kMany, kFirst, scalars_of(0));
    run_once_per_entry([&] {
      for (const int threads : {1, 2, 3}) {
        set_kernel_threads(threads);
        State cut(kMany);
        int64_t begin = 0;
        for (const int64_t end : {int64_t{1}, int64_t{36}, int64_t{37}, int64_t{131072}, kMany}) {
          cut.update(adam, begin, end, kFirst, scalars_of(0));
          begin = end;
        }
        REQUIRE(same_bits(cut.p, whole.p));
        REQUIRE(same_bits(cut.m, whole.m));
        REQUIRE(same_bits(cut.v, whole.v));
      }
      set_kernel_threads(2);
    });
    State elsewhere(kMany), later(kMany);
    elsewhere.update(adam, 0, kMany, kFirst + 1, scalars_of(0));
    StepScalars next = scalars_of(0);
    next.rounding_key = rounding_key(17, 1);
    later.update(adam, 0, kMany, kFirst, next);
    REQUIRE_FALSE(same_bits(elsewhere.p, whole.p));
    REQUIRE_FALSE(same_bits(later.p, whole.p));
  }
}

// A step moves a parameter of 1 by a sixteenth of a bf16 unit: with rounding to nearest it would
// never move.
TEST_CASE("many steps that are each too small for bf16 move parameters by their sum") {
  constexpr int64_t kMany = 20000;
  Halves p = to_halves(Floats(kMany, 1.0F), DType::kBF16);
  const Floats g(kMany, 0x1p-12F);
  for (int i = 0; i < 100; ++i) {
    StepScalars scalars;
    scalars.learning_rate = 1.0F;
    scalars.rounding_key = rounding_key(3, i);
    optimizer_update({.parameters = p.data(),
                      .parameter_dtype = DType::kBF16,
                      .gradients = g.data(),
                      .count = kMany},
                     {.type = OptimizerType::kSgd}, scalars);
  }
  double sum = 0.0;
  for (const float x : to_floats(p, DType::kBF16)) sum += static_cast<double>(x);
  REQUIRE(sum / kMany == Approx(1.0 - 100 * 0x1p-12).margin(5e-4));
}

TEST_CASE("NaN and infinity stay NaN and infinity in bf16 state") {
  run_once_per_entry([] {
    Halves p = to_halves({NAN, 1.0F, 1.0F, 1.0F}, DType::kBF16);
    const Floats g{1.0F, -INFINITY, INFINITY, NAN};
    StepScalars scalars;
    scalars.learning_rate = 1.0F;
    optimizer_update({.parameters = p.data(),
                      .parameter_dtype = DType::kBF16,
                      .gradients = g.data(),
                      .count = 4},
                     {.type = OptimizerType::kSgd}, scalars);
    const Floats out = to_floats(p, DType::kBF16);
    REQUIRE(std::isnan(out[0]));
    REQUIRE(out[1] == INFINITY);
    REQUIRE(out[2] == -INFINITY);
    REQUIRE(std::isnan(out[3]));
  });
}

TEST_CASE("a bf16 copy of bf16 parameters equals the parameters") {
  State state(kMixedCount);
  Halves copy(kMixedCount);
  run_optimizer_step(true,
                     {.parameters = state.p.data(),
                      .parameter_dtype = DType::kBF16,
                      .gradients = state.g.data(),
                      .gradient_dtype = DType::kBF16,
                      .states = {state.m.data(), state.v.data()},
                      .state_dtype = DType::kBF16,
                      .copy = copy.data(),
                      .count = kMixedCount},
                     scalars_of(0));
  REQUIRE(same_bits(copy, state.p));
}

}  // namespace
}  // namespace ftrun::testing
