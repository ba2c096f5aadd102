#include <cmath>

#include "base/error.h"
#include "ops/activation/activation.h"
#include "ops/embedding/embedding.h"
#include "ops/kinds.h"
#include "ops/linear/linear.h"
#include "ops/scale/scale.h"
#include "ops/softcap/softcap.h"
#include "rig.h"

#include <catch2/catch.hpp>

namespace ftrun::test {
namespace {

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                       Activation::kRelu, Activation::kRelu2};

TEST_CASE("activations and their gradients agree with autograd, also in place") {
  for_each_backend([](DType dtype) {
    for (const Activation kind : kActivations)
      for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1, 1}, {9, 13}, {5, 64}}) {
        CAPTURE(dtype_name(dtype), static_cast<int>(kind), dims[1]);
        OracleCase c{OpKind::kActivation,
                     ActivationAttrs{kind},
                     {random_array(dims, 1)},
                     {},
                     random_array(dims, 2)};
        for (double& v : c.inputs[0].data) v *= 6.0;
        c = stored(c, dtype);
        const OracleResult expected = oracle(c);
        Rig rig(dtype);
        const ValueId x = rig.input(c.inputs[0]), dy = rig.input(c.gradient);
        const ValueId y = rig.output(dims), dx = rig.output(dims);
        rig.run(OpKind::kActivation, {x}, {y}, c.attrs);
        rig.run(OpKind::kActivationDgrad, {dy, x}, {dx}, c.attrs);
        REQUIRE(relative_error(rig.read(y), expected.outputs[0]) < tolerance(dtype));
        REQUIRE(relative_error(rig.read(dx), expected.gradients[0]) < tolerance(dtype));
        rig.run(OpKind::kActivationDgrad, {dy, x}, {x}, c.attrs);
        REQUIRE(rig.bits(x) == rig.bits(dx));
      }
  });
}

TEST_CASE("activations have the numbers of a worked example") {
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
      Rig rig(dtype);
      const ValueId in = rig.input(x), y = rig.output({1, 4});
      rig.run(OpKind::kActivation, {in}, {y}, ActivationAttrs{kind});
      const Array found = rig.read(y);
      for (size_t i = 0; i < 4; ++i)
        REQUIRE(std::abs(found.data[i] - values[i]) < (dtype == DType::kF64 ? 6e-9 : 3e-7));
    }
}

TEST_CASE("gelu in fp32 keeps the digits of its tail, and its slope is right to a few units of 1") {
  const double pi = std::acos(-1.0);
  Array x{{1, 24001}, {}};
  for (int i = -12000; i <= 12000; ++i) x.data.push_back(static_cast<float>(i * 1e-3));
  const Array ones{{1, 24001}, std::vector<double>(24001, 1.0)};
  for (const Activation kind : {Activation::kGelu, Activation::kGeluTanh}) {
    Rig rig(DType::kF32);
    const ValueId in = rig.input(x), one = rig.input(ones), y = rig.output(x.dims),
                  slope = rig.output(x.dims);
    rig.run(OpKind::kActivation, {in}, {y}, ActivationAttrs{kind});
    rig.run(OpKind::kActivationDgrad, {one, in}, {slope}, ActivationAttrs{kind});
    const Array value = rig.read(y), gradient = rig.read(slope);
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
  for_each_backend([](DType dtype) {
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
          c = stored(c, dtype);
          const OracleResult expected = oracle(c);
          Rig rig(dtype);
          const ValueId gu = rig.input(c.inputs[0]), ds = rig.input(c.gradient);
          const ValueId s = rig.output({tokens, width}), dgu = rig.output({tokens, 2 * width});
          rig.run(OpKind::kGatedActivation, {gu}, {s}, c.attrs);
          rig.run(OpKind::kGatedActivationDgrad, {ds, gu}, {dgu}, c.attrs);
          REQUIRE(relative_error(rig.read(s), expected.outputs[0]) < tolerance(dtype));
          REQUIRE(relative_error(rig.read(dgu), expected.gradients[0]) < tolerance(dtype));
          rig.run(OpKind::kGatedActivationDgrad, {ds, gu}, {gu}, c.attrs);
          REQUIRE(rig.bits(gu) == rig.bits(dgu));
        }
  });
}

TEST_CASE(
    "silu is right to a few units in the last place from -80 to 80, and finite or NaN where it "
    "must be") {
  for_each_backend([](DType dtype) {
    Array gu{{1, 2 * 16001}, {}};
    for (int i = 0; i <= 16000; ++i) gu.data.push_back(static_cast<float>(-80.0 + i * 0.01));
    gu.data.resize(2 * 16001, 1.0);
    gu = rounded(gu, dtype);
    Rig rig(dtype);
    const ValueId in = rig.input(gu), s = rig.output({1, 16001});
    rig.run(OpKind::kGatedActivation, {in}, {s});
    const Array out = rig.read(s);
    // F16 has nothing between 0 and 2^-24.
    const double least = dtype == DType::kF16 ? 0x1p-14 : 1e-30;
    double worst = 0.0;
    for (size_t i = 0; i <= 16000; ++i) {
      const double exact = gu.data[i] / (1.0 + std::exp(-gu.data[i]));
      worst = std::max(worst, std::abs(out.data[i] - exact) / std::max(std::abs(exact), least));
    }
    REQUIRE(worst < (is_narrow(dtype) ? 1.001 : 8.0) * unit_roundoff(dtype));

    Rig edges(dtype);
    const ValueId extreme =
        edges.input({{1, 8}, {-1000.0, 1000.0, NAN, -INFINITY, 1.0, 1.0, 1.0, 1.0}});
    const ValueId result = edges.output({1, 4});
    edges.run(OpKind::kGatedActivation, {extreme}, {result});
    const Array r = edges.read(result);
    REQUIRE(std::abs(r.data[0]) < 1e-30);
    REQUIRE(r.data[1] == 1000.0);
    REQUIRE(std::isnan(r.data[2]));
  });
}

TEST_CASE("add agrees with autograd, also in place") {
  for_each_backend([](DType dtype) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1, 1}, {3, 7}, {65, 576}}) {
      const OracleCase c = stored({OpKind::kAdd,
                                   NoAttrs{},
                                   {random_array(dims, 1), random_array(dims, 2)},
                                   {},
                                   random_array(dims, 3)},
                                  dtype);
      const OracleResult expected = oracle(c);
      Rig rig(dtype);
      const ValueId a = rig.input(c.inputs[0]), b = rig.input(c.inputs[1]), sum = rig.output(dims);
      rig.run(OpKind::kAdd, {a, b}, {sum});
      REQUIRE(relative_error(rig.read(sum), expected.outputs[0]) < tolerance(dtype));
      rig.run(OpKind::kAdd, {a, b}, {a});
      REQUIRE(rig.bits(a) == rig.bits(sum));
    }
  });
}

TEST_CASE("scale and its gradient agree with autograd, also in place") {
  for_each_backend([](DType dtype) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1, 1}, {3, 7}, {65, 576}}) {
      const OracleCase c = stored(
          {OpKind::kScale, ScaleAttrs{-0.22}, {random_array(dims, 1)}, {}, random_array(dims, 3)},
          dtype);
      const OracleResult expected = oracle(c);
      Rig rig(dtype);
      const ValueId x = rig.input(c.inputs[0]), y = rig.output(dims);
      const ValueId dy = rig.input(c.gradient), dx = rig.output(dims);
      rig.run(OpKind::kScale, {x}, {y}, c.attrs);
      rig.run(OpKind::kScale, {dy}, {dx}, c.attrs);
      REQUIRE(relative_error(rig.read(y), expected.outputs[0]) < tolerance(dtype));
      REQUIRE(relative_error(rig.read(dx), expected.gradients[0]) < tolerance(dtype));
      rig.run(OpKind::kScale, {x}, {x}, c.attrs);
      REQUIRE(rig.bits(x) == rig.bits(y));
    }
  });
}

TEST_CASE("softcap and its gradient agree with autograd, also in place") {
  for_each_backend([](DType dtype) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1, 1}, {3, 7}, {65, 576}})
      for (const double size : {1e-3, 1.0, 40.0}) {
        CAPTURE(dtype_name(dtype), dims[1], size);
        OracleCase c{OpKind::kSoftcap,
                     SoftcapAttrs{2.5},
                     {random_array(dims, 1)},
                     {},
                     random_array(dims, 3)};
        for (double& v : c.inputs[0].data) v *= size;
        c = stored(c, dtype);
        const OracleResult expected = oracle(c);
        Rig rig(dtype);
        const ValueId x = rig.input(c.inputs[0]), y = rig.output(dims);
        const ValueId dy = rig.input(c.gradient), dx = rig.output(dims);
        rig.run(OpKind::kSoftcap, {x}, {y}, c.attrs);
        REQUIRE(relative_error(rig.read(y), expected.outputs[0]) < tolerance(dtype));
        rig.run(OpKind::kSoftcap, {x}, {x}, c.attrs);
        REQUIRE(rig.bits(x) == rig.bits(y));
        // The slope is of what is stored: where the bound is reached, digits of it are few.
        if (size > 1.0 && dtype != DType::kF64) continue;
        rig.run(OpKind::kSoftcapDgrad, {dy, y}, {dx}, c.attrs);
        const double stored_y = is_narrow(dtype) ? 4 * unit_roundoff(dtype) : 0.0;
        REQUIRE(relative_error(rig.read(dx), expected.gradients[0]) < tolerance(dtype) + stored_y);
        rig.run(OpKind::kSoftcapDgrad, {dy, y}, {dy}, c.attrs);
        REQUIRE(rig.bits(dy) == rig.bits(dx));
      }
  });
}

TEST_CASE("capped numbers are those of a worked example") {
  Rig rig(DType::kF32);
  const ValueId x = rig.input({{1, 5}, {-90.0, -1.5, 0.0, 0.01, 30.0}}), y = rig.output({1, 5});
  rig.run(OpKind::kSoftcap, {x}, {y}, SoftcapAttrs{30.0});
  const std::vector<double> expected{-29.85164261, -1.498751249, 0.0, 0.009999999630, 22.84782468};
  for (size_t i = 0; i < 5; ++i)
    REQUIRE(rig.read(y).data[i] == Approx(expected[i]).epsilon(3e-7).margin(1e-12));
}

TEST_CASE("embedding gathers rows; its gradient adds up repeated tokens") {
  for_each_backend([](DType dtype) {
    for (const int64_t width : {1, 70, 128}) {
      CAPTURE(dtype_name(dtype), width);
      const OracleCase c = stored({OpKind::kEmbed,
                                   NoAttrs{},
                                   {random_array({11, width}, 1)},
                                   {3, 0, 10, 3, 3, 7},
                                   random_array({6, width}, 2)},
                                  dtype);
      const OracleResult expected = oracle(c);
      Rig rig(dtype);
      const ValueId tokens = rig.ints(c.ints), table = rig.input(c.inputs[0]),
                    dx = rig.input(c.gradient);
      const ValueId x = rig.output({6, width}), dtable = rig.output({11, width});
      rig.run(OpKind::kEmbed, {tokens, table}, {x});
      rig.run(OpKind::kEmbedWgrad, {tokens, dx}, {dtable});
      REQUIRE(relative_error(rig.read(x), expected.outputs[0]) == 0.0);
      REQUIRE(relative_error(rig.read(dtable), expected.gradients[0]) < tolerance(dtype));
      Array twice = rig.read(dtable);
      for (size_t i = 0; i < twice.data.size(); ++i) twice.data[i] += expected.gradients[0].data[i];
      rig.run(OpKind::kEmbedWgrad, {tokens, dx}, {dtable}, NoAttrs{}, true);
      REQUIRE(relative_error(rig.read(dtable), twice) < tolerance(dtype));
    }
  });
}

TEST_CASE("a token outside the table is caught before memory is touched") {
  Rig rig(DType::kF32);
  const ValueId table = rig.input(random_array({11, 4}, 1)), x = rig.output({2, 4});
  for (const int32_t bad : {-1, 11}) {
    const ValueId tokens = rig.ints({0, bad});
    try {
      rig.run(OpKind::kEmbed, {tokens, table}, {x});
      FAIL("no error");
    } catch (const Error& e) {
      REQUIRE(e.code() == ExitCode::kBug);
      REQUIRE_THAT(
          e.message(),
          Catch::Contains(cat("token ", bad,
                              " at position 1 of a micro-batch is outside the table of 11 rows")));
    }
  }
}

TEST_CASE("a dtype the CPU kernels cannot do is refused by name") {
  LayerGraph graph;
  graph.values = {{"x", DType::kI64, {2, 2}}, {"y", DType::kI64, {2, 2}}};
  const Op op{OpKind::kAdd, {0, 0}, {1}, NoAttrs{}};
  std::vector<void*> storage(2, nullptr);
  try {
    run_op(graph, op, storage, {});
    FAIL("no error");
  } catch (const Error& e) {
    REQUIRE(e.code() == ExitCode::kUnsupported);
    REQUIRE(e.message() == "the CPU kernels know no activations in I64 (add)");
    REQUIRE(e.remedy() == "train in fp32, bf16 or fp16");
  }
}

TEST_CASE(
    "the row of a token that is left out gets no gradient, and all others have the same bits") {
  for_each_backend([](DType dtype) {
    const std::vector<int32_t> tokens{3, 9, 0, 9, 3, 11, 9};
    const Array dx = rounded(random_array({7, 70}, 2), dtype),
                before = rounded(random_array({12, 70}, 3), dtype);
    for (const bool accumulate : {false, true})
      for (const int64_t first : {0, 6}) {
        CAPTURE(dtype_name(dtype), accumulate, first);
        Rig rig(dtype);
        const int64_t rows = 12 - first;
        const Array table{{rows, 70}, {before.data.begin() + first * 70, before.data.end()}};
        const ValueId whole = rig.input(table), without = rig.input(table), ids = rig.ints(tokens),
                      gradient = rig.input(dx);
        rig.run(OpKind::kEmbedWgrad, {ids, gradient}, {whole}, RowsAttrs{first, 12}, accumulate);
        rig.run(OpKind::kEmbedWgrad, {ids, gradient}, {without}, RowsAttrs{first, 12, 9},
                accumulate);
        const Array all = rig.read(whole), found = rig.read(without), given = rounded(table, dtype);
        for (size_t i = 0; i < found.data.size(); ++i)
          REQUIRE(found.data[i] == (static_cast<int64_t>(i) / 70 + first != 9 ? all.data[i]
                                    : accumulate                              ? given.data[i]
                                                                              : 0.0));
      }
  });
}

TEST_CASE(
    "a table of some rows of the vocabulary gives zeros for other rows' tokens and gets no "
    "gradient from them") {
  for_each_backend([](DType dtype) {
    const std::vector<int32_t> tokens{3, 9, 0, 5, 3, 11, 4};
    const Array table = rounded(random_array({12, 70}, 1), dtype),
                dx = rounded(random_array({7, 70}, 2), dtype);
    Rig whole(dtype);
    const ValueId whole_tokens = whole.ints(tokens), x = whole.output({7, 70}),
                  dtable = whole.output({12, 70});
    whole.run(OpKind::kEmbed, {whole_tokens, whole.input(table)}, {x});
    whole.run(OpKind::kEmbedWgrad, {whole_tokens, whole.input(dx)}, {dtable});
    for (int64_t first = 0; first < 12; first += 4) {
      CAPTURE(dtype_name(dtype), first);
      const RowsAttrs rows{first, 12};
      const auto begin = table.data.begin() + first * 70;
      Rig rig(dtype);
      const ValueId ids = rig.ints(tokens), own = rig.input({{4, 70}, {begin, begin + 4 * 70}});
      const ValueId own_x = rig.output({7, 70}), own_dtable = rig.output({4, 70});
      rig.run(OpKind::kEmbed, {ids, own}, {own_x}, rows);
      rig.run(OpKind::kEmbedWgrad, {ids, rig.input(dx)}, {own_dtable}, rows);
      const Array found = rig.read(own_x), all = whole.read(x), gradient = rig.read(own_dtable);
      for (size_t n = 0; n < tokens.size(); ++n)
        for (size_t i = n * 70; i < (n + 1) * 70; ++i)
          REQUIRE(found.data[i] == (tokens[n] / 4 == first / 4 ? all.data[i] : 0.0));
      const Array whole_gradient = whole.read(dtable);
      for (size_t i = 0; i < gradient.data.size(); ++i)
        REQUIRE(gradient.data[i] == whole_gradient.data[static_cast<size_t>(first * 70) + i]);
      REQUIRE_THROWS_WITH(
          rig.run(OpKind::kEmbed, {rig.ints({12, 0, 0, 0, 0, 0, 0}), own}, {own_x}, rows),
          Catch::Contains(
              "token 12 at position 0 of a micro-batch is outside the table of 12 rows"));
    }
  });
}

TEST_CASE("a bias that another rank adds is left out of the product") {
  for_each_backend([](DType dtype) {
    Rig rig(dtype);
    const ValueId x = rig.input(random_array({5, 7}, 1)), w = rig.input(random_array({6, 7}, 2));
    const ValueId b = rig.input(random_array({6}, 3)), plain = rig.output({5, 6}),
                  left = rig.output({5, 6}), added = rig.output({5, 6});
    rig.run(OpKind::kLinear, {x, w}, {plain});
    rig.run(OpKind::kLinear, {x, w, b}, {left},
            LinearAttrs{.gradient_ranks = 1, .adds_bias = false});
    rig.run(OpKind::kLinear, {x, w, b}, {added}, LinearAttrs{.gradient_ranks = 4});
    REQUIRE(rig.bits(left) == rig.bits(plain));
    REQUIRE(rig.bits(added) != rig.bits(plain));
  });
}

}  // namespace
}  // namespace ftrun::test
