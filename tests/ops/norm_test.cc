#include <cmath>

#include "operation_runner.h"
#include "ops/head_norm/head_norm.h"
#include "ops/heads.h"
#include "ops/kinds.h"
#include "ops/norm/norm.h"
#include "ops/whole_qk_norm/whole_qk_norm.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

struct NormShape {
  int64_t tokens, width;
};
const std::vector<NormShape> kNormShapes{{1, 1}, {3, 5}, {65, 37}, {130, 576}};

TEST_CASE("rms_norm and its gradients agree with autograd") {
  for_each_dtype([](DType dtype) {
    for (const NormShape& s : kNormShapes) {
      const NormAttrs attrs{1e-5, s.width == 37 ? 1.0 : 0.0};
      CAPTURE(dtype_name(dtype), s.tokens, s.width);
      const OracleCase c =
          round_to_stored({OpKind::kRmsNorm,
                           attrs,
                           {random_array({s.tokens, s.width}, 1), random_array({s.width}, 2)},
                           {},
                           random_array({s.tokens, s.width}, 3)},
                          dtype);
      const OracleResult expected = oracle(c);
      OperationRunner runner(dtype);
      const ValueId x = runner.input(c.inputs[0]), w = runner.input(c.inputs[1]),
                    dy = runner.input(c.gradient);
      const ValueId y = runner.output({s.tokens, s.width}), rstd = runner.statistic({s.tokens});
      const ValueId dx = runner.output({s.tokens, s.width}), dw = runner.output({s.width});
      runner.run(OpKind::kRmsNorm, {x, w}, {y, rstd}, attrs);
      runner.run(OpKind::kRmsNormDgrad, {dy, x, rstd, w}, {dx}, attrs);
      runner.run(OpKind::kRmsNormWgrad, {dy, x, rstd}, {dw});
      REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(rstd), expected.outputs[1]) < tolerance(dtype));
      // A single element's norm changes only through the epsilon, which alone determines its
      // gradient.
      if (s.width > 1)
        REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(dw), expected.gradients[1]) < tolerance(dtype));
      const ValueId twice = runner.input(runner.read(dw));
      runner.run(OpKind::kRmsNormWgrad, {dy, x, rstd}, {twice}, NoAttrs{}, true);
      Array doubled = runner.read(dw);
      for (size_t i = 0; i < doubled.data.size(); ++i)
        doubled.data[i] += expected.gradients[1].data[i];
      REQUIRE(relative_error(runner.read(twice), doubled) < tolerance(dtype));
    }
  });
}

TEST_CASE("add_rms_norm adds the residual, and its gradient includes the sum's own gradient") {
  for_each_dtype([](DType dtype) {
    for (const NormShape& s : kNormShapes) {
      if (s.width == 1) continue;
      CAPTURE(dtype_name(dtype), s.tokens, s.width);
      const NormAttrs attrs{1e-6, s.width == 5 ? 1.0 : 0.0};
      const std::vector<int64_t> dims{s.tokens, s.width};
      OracleCase c = round_to_stored(
          {OpKind::kAddRmsNorm,
           attrs,
           {random_array(dims, 1), random_array(dims, 2), random_array({s.width}, 3)},
           {},
           random_array(dims, 4),
           random_array(dims, 5)},
          dtype);
      // The norm is that of the stored sum, so the 16-bit inputs are such that sums are stored
      // exactly.
      if (is_narrow(dtype))
        for (const size_t i : {0, 1})
          for (double& v : c.inputs[i].data) v = std::nearbyint(v * 32.0) / 32.0;
      const OracleResult expected = oracle(c);
      OperationRunner runner(dtype);
      const ValueId x = runner.input(c.inputs[0]), r = runner.input(c.inputs[1]),
                    w = runner.input(c.inputs[2]);
      const ValueId dsum = runner.input(c.gradient), dy = runner.input(c.second_gradient);
      const ValueId sum = runner.output(dims), y = runner.output(dims),
                    rstd = runner.statistic({s.tokens}), dx = runner.output(dims);
      runner.run(OpKind::kAddRmsNorm, {x, r, w}, {sum, y, rstd}, attrs);
      runner.run(OpKind::kRmsNormDgrad, {dy, sum, rstd, w, dsum}, {dx}, attrs);
      REQUIRE(relative_error(runner.read(sum), expected.outputs[0]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(y), expected.outputs[1]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(dx), expected.gradients[1]) < tolerance(dtype));
      // dx may be written over dsum, the gradient that is added to it.
      runner.run(OpKind::kRmsNormDgrad, {dy, sum, rstd, w, dsum}, {dsum}, attrs);
      REQUIRE(runner.bits(dsum) == runner.bits(dx));
    }
  });
}

TEST_CASE(
    "layer_norm and its gradients agree with autograd, with a weight, a bias, both, and the "
    "passing gradient") {
  for_each_dtype([](DType dtype) {
    for (const NormShape& s : kNormShapes)
      for (const size_t params : {0, 1, 2}) {
        if (s.width == 1) continue;  // a single element has no deviation
        CAPTURE(dtype_name(dtype), s.tokens, s.width, params);
        const std::vector<int64_t> dims{s.tokens, s.width};
        OracleCase c{OpKind::kLayerNorm,
                     NormAttrs{1e-5},
                     {random_array(dims, 1)},
                     {},
                     random_array(dims, 3)};
        for (size_t i = 0; i < params; ++i) c.inputs.push_back(random_array({s.width}, 4 + i));
        c = round_to_stored(c, dtype);
        const OracleResult expected = oracle(c);
        OperationRunner runner(dtype);
        std::vector<ValueId> in;
        for (const Array& each : c.inputs) in.push_back(runner.input(each));
        const ValueId x = in[0], dy = runner.input(c.gradient),
                      e = runner.input(random_array(dims, 7));
        const ValueId y = runner.output(dims), mean = runner.statistic({s.tokens}),
                      rstd = runner.statistic({s.tokens});
        runner.run(OpKind::kLayerNorm, in, {y, mean, rstd}, NormAttrs{1e-5});
        for (size_t i = 0; i < 3; ++i)
          REQUIRE(relative_error(runner.read(std::vector{y, mean, rstd}[i]), expected.outputs[i]) <
                  tolerance(dtype));
        const ValueId dx = runner.output(dims);
        std::vector<ValueId> read{dy, x, mean, rstd};
        if (params > 0) read.push_back(in[1]);
        runner.run(OpKind::kLayerNormDgrad, read, {dx});
        REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) < tolerance(dtype));
        if (params == 0) continue;
        read.push_back(e);
        runner.run(OpKind::kLayerNormDgrad, read, {dx});
        REQUIRE(relative_error(runner.read(dx), array_sum(expected.gradients[0], runner.read(e))) <
                tolerance(dtype));
        std::vector<ValueId> gradients, twice;
        for (size_t i = 0; i < params; ++i) gradients.push_back(runner.output({s.width}));
        runner.run(OpKind::kLayerNormWgrad, {dy, x, mean, rstd}, gradients);
        for (size_t i = 0; i < params; ++i) {
          REQUIRE(relative_error(runner.read(gradients[i]), expected.gradients[1 + i]) <
                  tolerance(dtype));
          twice.push_back(runner.input(runner.read(gradients[i])));
        }
        runner.run(OpKind::kLayerNormWgrad, {dy, x, mean, rstd}, twice, NoAttrs{}, true);
        for (size_t i = 0; i < params; ++i)
          REQUIRE(relative_error(runner.read(twice[i]),
                                 array_sum(runner.read(gradients[i]), expected.gradients[1 + i])) <
                  tolerance(dtype));
      }
  });
}

TEST_CASE("layer_norm gives the values of an example computed by hand") {
  OperationRunner runner(DType::kF64);
  const ValueId x = runner.input({{1, 4}, {1, -2, 0.5, 3}}),
                w = runner.input({{4}, {0.5, 1, -1, 2}});
  const ValueId b = runner.input({{4}, {0.1, 0, -0.2, 0.3}}),
                dy = runner.input({{1, 4}, {1, 0.5, -1, 0.25}});
  const ValueId y = runner.output({1, 4}), mean = runner.statistic({1}),
                rstd = runner.statistic({1}), dx = runner.output({1, 4});
  runner.run(OpKind::kLayerNorm, {x, w, b}, {y, mean, rstd}, NormAttrs{1e-5});
  runner.run(OpKind::kLayerNormDgrad, {dy, x, mean, rstd, w}, {dx});
  REQUIRE(relative_error(runner.read(y),
                         {{1, 4}, {0.20527919, -1.47390873, -0.12981387, 2.96707294}}) < 1e-8);
  REQUIRE(relative_error(runner.read(dx),
                         {{1, 4}, {-0.06914890, -0.07744674, 0.21021265, -0.06361701}}) < 1e-7);
}

TEST_CASE("a mean much larger than the deviations costs layer_norm no precision") {
  Array x{{1, 100}, {}};
  for (int i = 0; i < 100; ++i) x.data.push_back(4096.0 + (i % 2 == 0 ? 0.25 : -0.25));
  OperationRunner runner(DType::kF32);
  const ValueId in = runner.input(x), y = runner.output({1, 100}), mean = runner.statistic({1}),
                rstd = runner.statistic({1});
  runner.run(OpKind::kLayerNorm, {in}, {y, mean, rstd}, NormAttrs{1e-5});
  REQUIRE(runner.read(mean).data[0] == 4096.0);
  REQUIRE(std::abs(runner.read(rstd).data[0] * std::sqrt(0.0625 + 1e-5) - 1.0) < 1e-7);
}

TEST_CASE(
    "qk_norm normalizes each head of q and k, copies v, and its gradients agree with autograd") {
  for_each_dtype([](DType dtype) {
    for (const HeadAttrs heads :
         {HeadAttrs{1, 1, 2, 1e-6}, HeadAttrs{3, 1, 10, 1e-6, 1.0}, HeadAttrs{4, 2, 64, 1e-5}})
      for (const int64_t tokens : {1, 70}) {
        CAPTURE(dtype_name(dtype), heads.query_heads, heads.head_size, tokens);
        const std::vector<int64_t> dims{tokens,
                                        (heads.query_heads + 2 * heads.kv_heads) * heads.head_size};
        const OracleCase c =
            round_to_stored({OpKind::kQkNorm,
                             heads,
                             {random_array(dims, 1), random_array({heads.head_size}, 2),
                              random_array({heads.head_size}, 3)},
                             {},
                             random_array(dims, 4)},
                            dtype);
        const OracleResult expected = oracle(c);
        OperationRunner runner(dtype);
        const ValueId qkv = runner.input(c.inputs[0]), wq = runner.input(c.inputs[1]),
                      wk = runner.input(c.inputs[2]);
        const ValueId dy = runner.input(c.gradient), y = runner.output(dims),
                      dqkv = runner.output(dims);
        const ValueId rstd = runner.statistic({tokens, heads.query_heads + heads.kv_heads});
        const ValueId dwq = runner.output({heads.head_size}),
                      dwk = runner.output({heads.head_size});
        runner.run(OpKind::kQkNorm, {qkv, wq, wk}, {y, rstd}, heads);
        runner.run(OpKind::kQkNormDgrad, {dy, qkv, rstd, wq, wk}, {dqkv}, heads);
        runner.run(OpKind::kQkNormWgrad, {dy, qkv, rstd}, {dwq, dwk}, heads);
        REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(rstd), expected.outputs[1]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(dqkv), expected.gradients[0]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(dwq), expected.gradients[1]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(dwk), expected.gradients[2]) < tolerance(dtype));
      }
  });
}

TEST_CASE(
    "head_norm normalizes each head of q and k with its own weights, copies v, and its gradients "
    "agree with autograd") {
  for_each_dtype([](DType dtype) {
    for (const HeadAttrs heads :
         {HeadAttrs{1, 1, 2, 1e-5}, HeadAttrs{3, 1, 10, 1e-5}, HeadAttrs{4, 2, 64, 1e-6}})
      for (const int64_t tokens : {1, 70}) {
        CAPTURE(dtype_name(dtype), heads.query_heads, heads.head_size, tokens);
        const int64_t q = heads.query_heads * heads.head_size, k = heads.kv_heads * heads.head_size;
        const std::vector<int64_t> dims{tokens, q + 2 * k};
        const OracleCase c =
            round_to_stored({OpKind::kHeadNorm,
                             heads,
                             {random_array(dims, 1), random_array({q}, 2), random_array({k}, 3)},
                             {},
                             random_array(dims, 4)},
                            dtype);
        const OracleResult expected = oracle(c);
        OperationRunner runner(dtype);
        const ValueId qkv = runner.input(c.inputs[0]), wq = runner.input(c.inputs[1]),
                      wk = runner.input(c.inputs[2]);
        const ValueId dy = runner.input(c.gradient), y = runner.output(dims),
                      dqkv = runner.output(dims);
        const std::vector<int64_t> statistic{tokens, heads.query_heads + heads.kv_heads};
        const ValueId mean = runner.statistic(statistic), rstd = runner.statistic(statistic);
        const ValueId dwq = runner.output({q}), dwk = runner.output({k});
        runner.run(OpKind::kHeadNorm, {qkv, wq, wk}, {y, mean, rstd}, heads);
        runner.run(OpKind::kHeadNormDgrad, {dy, qkv, mean, rstd, wq, wk}, {dqkv}, heads);
        runner.run(OpKind::kHeadNormWgrad, {dy, qkv, mean, rstd}, {dwq, dwk}, heads);
        REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(mean), expected.outputs[1]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(rstd), expected.outputs[2]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(dqkv), expected.gradients[0]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(dwq), expected.gradients[1]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(dwk), expected.gradients[2]) < tolerance(dtype));
      }
  });
}

/// WholeNorm holds the results, forward and backward, of a norm over whole queries and keys.
struct WholeNorm {
  OperationRunner runner;
  ValueId y, dqkv, dwq, dwk;

  WholeNorm(DType dtype, const OracleCase& c)
      : runner(dtype),
        y(runner.output(c.inputs[0].dims)),
        dqkv(runner.output(c.inputs[0].dims)),
        dwq(runner.output(c.inputs[2].dims)),
        dwk(runner.output(c.inputs[3].dims)) {
    const int64_t tokens = c.inputs[0].dims[0];
    const ValueId qkv = runner.input(c.inputs[0]), wq = runner.input(c.inputs[2]),
                  wk = runner.input(c.inputs[3]), dy = runner.input(c.gradient);
    const ValueId squares = runner.statistic({tokens, 2}), rstd = runner.statistic({tokens, 2}),
                  dots = runner.statistic({tokens, 2});
    runner.run(OpKind::kQkDots, {qkv, qkv}, {squares}, c.attrs);
    runner.run(OpKind::kWholeQkNorm, {qkv, squares, wq, wk}, {y, rstd}, c.attrs);
    runner.run(OpKind::kQkDots, {dy, qkv, wq, wk}, {dots}, c.attrs);
    runner.run(OpKind::kWholeQkNormDgrad, {dy, qkv, rstd, dots, wq, wk}, {dqkv}, c.attrs);
    runner.run(OpKind::kWholeQkNormWgrad, {dy, qkv, rstd}, {dwq, dwk}, c.attrs);
  }
};

TEST_CASE("a norm over all query heads and all key heads and its gradients agree with autograd") {
  for_each_dtype([](DType dtype) {
    for (const HeadAttrs& heads :
         {HeadAttrs{1, 1, 2, 1e-6}, HeadAttrs{3, 1, 10, 1e-6}, HeadAttrs{4, 2, 64, 1e-5}})
      for (const int64_t tokens : {1, 70}) {
        CAPTURE(dtype_name(dtype), heads.query_heads, heads.head_size, tokens);
        const WholeQkNormAttrs attrs{heads};
        const std::vector<int64_t> dims{tokens, attrs.query_elements() + 2 * attrs.key_elements()};
        const OracleCase c = round_to_stored(
            {OpKind::kWholeQkNorm,
             attrs,
             {random_array(dims, 1), random_array({tokens, 2}, 5),
              random_array({attrs.query_elements()}, 2), random_array({attrs.key_elements()}, 3)},
             {},
             random_array(dims, 4)},
            dtype);
        const OracleResult expected = oracle(c);
        WholeNorm norm(dtype, c);
        REQUIRE(relative_error(norm.runner.read(norm.y), expected.outputs[0]) < tolerance(dtype));
        REQUIRE(relative_error(norm.runner.read(norm.dqkv), expected.gradients[0]) <
                tolerance(dtype));
        REQUIRE(relative_error(norm.runner.read(norm.dwq), expected.gradients[2]) <
                tolerance(dtype));
        REQUIRE(relative_error(norm.runner.read(norm.dwk), expected.gradients[3]) <
                tolerance(dtype));
      }
  });
}

}  // namespace
}  // namespace ftrun::testing
