#include <cmath>

#include "operation_runner.h"
#include "ops/activation/activation.h"
#include "ops/activation/activation_traits.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

TEST_CASE("activations and their gradients agree with autograd, also in place") {
  for_each_dtype([](DType dtype) {
    for (const Activation kind : kActivations)
      for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1, 1}, {9, 13}, {5, 64}}) {
        CAPTURE(dtype_name(dtype), static_cast<int>(kind), dims[1]);
        OracleCase c{OpKind::kActivation,
                     ActivationAttrs{kind},
                     {random_array(dims, 1)},
                     {},
                     random_array(dims, 2)};
        for (double& v : c.inputs[0].data) v *= 6.0;
        c = round_to_stored(c, dtype);
        const OracleResult expected = oracle(c);
        OperationRunner runner(dtype);
        const ValueId x = runner.input(c.inputs[0]), dy = runner.input(c.gradient);
        const ValueId y = runner.output(dims), dx = runner.output(dims);
        runner.run(OpKind::kActivation, {x}, {y}, c.attrs);
        runner.run(OpKind::kActivationDgrad, {dy, x}, {dx}, c.attrs);
        REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) < tolerance(dtype));
        runner.run(OpKind::kActivationDgrad, {dy, x}, {x}, c.attrs);
        REQUIRE(runner.bits(x) == runner.bits(dx));
      }
  });
}

TEST_CASE("activations give the values of an example computed by hand") {
  const Array x{{1, 4}, {-2, -0.5, 0.5, 2}};
  const std::vector<std::pair<Activation, std::vector<double>>> expected{
      {Activation::kSilu, {-0.23840584, -0.18877033, 0.31122967, 1.76159416}},
      {Activation::kGelu, {-0.04550026, -0.15426877, 0.34573123, 1.95449974}},
      {Activation::kGeluTanh, {-0.04540231, -0.15428599, 0.34571401, 1.95459769}},
      {Activation::kRelu, {0, 0, 0.5, 2}},
      {Activation::kRelu2, {0, 0, 0.25, 4}}};
  for (const auto& [kind, values] : expected)
    for (const DType dtype : {DType::kF64, DType::kF32}) {
      CAPTURE(static_cast<int>(kind), dtype_name(dtype));
      OperationRunner runner(dtype);
      const ValueId in = runner.input(x), y = runner.output({1, 4});
      runner.run(OpKind::kActivation, {in}, {y}, ActivationAttrs{kind});
      const Array found = runner.read(y);
      for (size_t i = 0; i < 4; ++i)
        REQUIRE(std::abs(found.data[i] - values[i]) < (dtype == DType::kF64 ? 6e-9 : 3e-7));
    }
}

TEST_CASE(
    "gelu in fp32 is precise also where it is nearly 0, and its derivative is within a few ulps of "
    "1") {
  const double pi = std::acos(-1.0);
  Array x{{1, 24001}, {}};
  for (int i = -12000; i <= 12000; ++i) x.data.push_back(static_cast<float>(i * 1e-3));
  const Array ones{{1, 24001}, std::vector<double>(24001, 1.0)};
  for (const Activation kind : {Activation::kGelu, Activation::kGeluTanh}) {
    OperationRunner runner(DType::kF32);
    const ValueId in = runner.input(x), one = runner.input(ones), y = runner.output(x.dims),
                  slope = runner.output(x.dims);
    runner.run(OpKind::kActivation, {in}, {y}, ActivationAttrs{kind});
    runner.run(OpKind::kActivationDgrad, {one, in}, {slope}, ActivationAttrs{kind});
    const Array value = runner.read(y), gradient = runner.read(slope);
    double near = 0.0, far = 0.0, slopes = 0.0;
    for (size_t i = 0; i < x.data.size(); ++i) {
      const double v = x.data[i], inner = std::sqrt(8.0 / pi) * (v + 0.044715 * v * v * v);
      const double sigma = kind == Activation::kGelu ? 0.5 * std::erfc(-v / std::sqrt(2.0))
                                                     : 1.0 / (1.0 + std::exp(-inner));
      const double growth =
          kind == Activation::kGelu
              ? std::exp(-0.5 * v * v) / std::sqrt(2.0 * pi)
              : sigma / (1.0 + std::exp(inner)) * std::sqrt(8.0 / pi) * (1.0 + 0.134145 * v * v);
      const double error =
          std::abs(value.data[i] - v * sigma) / std::max(std::abs(v * sigma), 1e-30);
      (std::abs(v) < 4.0 ? near : far) = std::max(std::abs(v) < 4.0 ? near : far, error);
      slopes = std::max(slopes, std::abs(gradient.data[i] - (sigma + v * growth)));
    }
    CAPTURE(static_cast<int>(kind), near, far, slopes);
    REQUIRE(near < 24.0 * unit_roundoff(DType::kF32));
    REQUIRE(far < 200.0 * unit_roundoff(DType::kF32));
    REQUIRE(slopes < 6.0 * unit_roundoff(DType::kF32));
  }
}

TEST_CASE("gated activations and their gradients agree with autograd, also in place") {
  for_each_dtype([](DType dtype) {
    for (const Activation kind : kActivations)
      for (const int64_t width : {1, 13, 64, 100})
        for (const int64_t tokens : {1, 9}) {
          CAPTURE(dtype_name(dtype), static_cast<int>(kind), width, tokens);
          OracleCase c{OpKind::kGatedActivation,
                       ActivationAttrs{kind},
                       {random_array({tokens, 2 * width}, 1)},
                       {},
                       random_array({tokens, width}, 2)};
          for (double& v : c.inputs[0].data) v *= 8.0;
          c = round_to_stored(c, dtype);
          const OracleResult expected = oracle(c);
          OperationRunner runner(dtype);
          const ValueId gu = runner.input(c.inputs[0]), ds = runner.input(c.gradient);
          const ValueId s = runner.output({tokens, width}),
                        dgu = runner.output({tokens, 2 * width});
          runner.run(OpKind::kGatedActivation, {gu}, {s}, c.attrs);
          runner.run(OpKind::kGatedActivationDgrad, {ds, gu}, {dgu}, c.attrs);
          REQUIRE(relative_error(runner.read(s), expected.outputs[0]) < tolerance(dtype));
          REQUIRE(relative_error(runner.read(dgu), expected.gradients[0]) < tolerance(dtype));
          runner.run(OpKind::kGatedActivationDgrad, {ds, gu}, {gu}, c.attrs);
          REQUIRE(runner.bits(gu) == runner.bits(dgu));
        }
  });
}

TEST_CASE("silu is within a few ulps from -80 to 80, correct for huge inputs, and NaN for NaN") {
  for_each_dtype([](DType dtype) {
    Array gu{{1, 2 * 16001}, {}};
    for (int i = 0; i <= 16000; ++i) gu.data.push_back(static_cast<float>(-80.0 + i * 0.01));
    gu.data.resize(2 * 16001, 1.0);
    gu = rounded(gu, dtype);
    OperationRunner runner(dtype);
    const ValueId in = runner.input(gu), s = runner.output({1, 16001});
    runner.run(OpKind::kGatedActivation, {in}, {s}, ActivationAttrs{});
    const Array out = runner.read(s);
    // F16 has no normal numbers below 2^-14.
    const double least = dtype == DType::kF16 ? 0x1p-14 : 1e-30;
    double worst = 0.0;
    for (size_t i = 0; i <= 16000; ++i) {
      const double exact = gu.data[i] / (1.0 + std::exp(-gu.data[i]));
      worst = std::max(worst, std::abs(out.data[i] - exact) / std::max(std::abs(exact), least));
    }
    REQUIRE(worst < (is_narrow(dtype) ? 1.001 : 8.0) * unit_roundoff(dtype));

    OperationRunner edges(dtype);
    const ValueId extreme =
        edges.input({{1, 8}, {-1000.0, 1000.0, NAN, -INFINITY, 1.0, 1.0, 1.0, 1.0}});
    const ValueId result = edges.output({1, 4});
    edges.run(OpKind::kGatedActivation, {extreme}, {result}, ActivationAttrs{});
    const Array r = edges.read(result);
    REQUIRE(std::abs(r.data[0]) < 1e-30);
    REQUIRE(r.data[1] == 1000.0);
    REQUIRE(std::isnan(r.data[2]));
  });
}

}  // namespace
}  // namespace ftrun::testing
