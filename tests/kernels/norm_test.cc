#include <cmath>

#include "ops/heads.h"
#include "ops/kinds.h"
#include "ops/norm/norm.h"
#include "rig.h"

#include <catch2/catch.hpp>

namespace ftrun::test {
namespace {

struct NormShape {
  int64_t tokens, width;
};
const std::vector<NormShape> kNormShapes{{1, 1}, {3, 5}, {65, 37}, {130, 576}};

TEST_CASE("rms_norm and its gradients agree with autograd") {
  for_each_backend([](DType dtype) {
    for (const NormShape& s : kNormShapes) {
      CAPTURE(dtype_name(dtype), s.tokens, s.width);
      const OracleCase c =
          stored({OpKind::kRmsNorm,
                  NormAttrs{1e-5},
                  {random_array({s.tokens, s.width}, 1), random_array({s.width}, 2)},
                  {},
                  random_array({s.tokens, s.width}, 3)},
                 dtype);
      const OracleResult expected = oracle(c);
      Rig rig(dtype);
      const ValueId x = rig.input(c.inputs[0]), w = rig.input(c.inputs[1]),
                    dy = rig.input(c.gradient);
      const ValueId y = rig.output({s.tokens, s.width}), rstd = rig.statistic({s.tokens});
      const ValueId dx = rig.output({s.tokens, s.width}), dw = rig.output({s.width});
      rig.run(OpKind::kRmsNorm, {x, w}, {y, rstd}, NormAttrs{1e-5});
      rig.run(OpKind::kRmsNormDgrad, {dy, x, rstd, w}, {dx});
      rig.run(OpKind::kRmsNormWgrad, {dy, x, rstd}, {dw});
      REQUIRE(relative_error(rig.read(y), expected.outputs[0]) < tolerance(dtype));
      REQUIRE(relative_error(rig.read(rstd), expected.outputs[1]) < tolerance(dtype));
      // One element leaves no direction in which the norm's output can change: the gradient is the
      // epsilon's.
      if (s.width > 1)
        REQUIRE(relative_error(rig.read(dx), expected.gradients[0]) < tolerance(dtype));
      REQUIRE(relative_error(rig.read(dw), expected.gradients[1]) < tolerance(dtype));
      const ValueId twice = rig.input(rig.read(dw));
      rig.run(OpKind::kRmsNormWgrad, {dy, x, rstd}, {twice}, NoAttrs{}, true);
      Array doubled = rig.read(dw);
      for (size_t i = 0; i < doubled.data.size(); ++i)
        doubled.data[i] += expected.gradients[1].data[i];
      REQUIRE(relative_error(rig.read(twice), doubled) < tolerance(dtype));
    }
  });
}

TEST_CASE("add_rms_norm sums the residual, and its gradient takes the sum's own gradient along") {
  for_each_backend([](DType dtype) {
    for (const NormShape& s : kNormShapes) {
      if (s.width == 1) continue;
      CAPTURE(dtype_name(dtype), s.tokens, s.width);
      const std::vector<int64_t> dims{s.tokens, s.width};
      OracleCase c =
          stored({OpKind::kAddRmsNorm,
                  NormAttrs{1e-6},
                  {random_array(dims, 1), random_array(dims, 2), random_array({s.width}, 3)},
                  {},
                  random_array(dims, 4),
                  random_array(dims, 5)},
                 dtype);
      // The norm is of the stored sum: in 16 bits, sums that are stored exactly.
      if (is_narrow(dtype))
        for (const size_t i : {0, 1})
          for (double& v : c.inputs[i].data) v = std::nearbyint(v * 32.0) / 32.0;
      const OracleResult expected = oracle(c);
      Rig rig(dtype);
      const ValueId x = rig.input(c.inputs[0]), r = rig.input(c.inputs[1]),
                    w = rig.input(c.inputs[2]);
      const ValueId dsum = rig.input(c.gradient), dy = rig.input(c.second_gradient);
      const ValueId sum = rig.output(dims), y = rig.output(dims), rstd = rig.statistic({s.tokens}),
                    dx = rig.output(dims);
      rig.run(OpKind::kAddRmsNorm, {x, r, w}, {sum, y, rstd}, NormAttrs{1e-6});
      rig.run(OpKind::kRmsNormDgrad, {dy, sum, rstd, w, dsum}, {dx});
      REQUIRE(relative_error(rig.read(sum), expected.outputs[0]) < tolerance(dtype));
      REQUIRE(relative_error(rig.read(y), expected.outputs[1]) < tolerance(dtype));
      REQUIRE(relative_error(rig.read(dx), expected.gradients[0]) < tolerance(dtype));
      REQUIRE(relative_error(rig.read(dx), expected.gradients[1]) < tolerance(dtype));
      // dx may lie on e.
      rig.run(OpKind::kRmsNormDgrad, {dy, sum, rstd, w, dsum}, {dsum});
      REQUIRE(rig.bits(dsum) == rig.bits(dx));
    }
  });
}

TEST_CASE(
    "qk_norm normalises each head of q and k, copies v, and its gradients agree with autograd") {
  for_each_backend([](DType dtype) {
    for (const HeadAttrs heads :
         {HeadAttrs{1, 1, 2, 1e-6}, HeadAttrs{3, 1, 10, 1e-6}, HeadAttrs{4, 2, 64, 1e-5}})
      for (const int64_t tokens : {1, 70}) {
        CAPTURE(dtype_name(dtype), heads.query_heads, heads.head_size, tokens);
        const std::vector<int64_t> dims{tokens,
                                        (heads.query_heads + 2 * heads.kv_heads) * heads.head_size};
        const OracleCase c = stored({OpKind::kQkNorm,
                                     heads,
                                     {random_array(dims, 1), random_array({heads.head_size}, 2),
                                      random_array({heads.head_size}, 3)},
                                     {},
                                     random_array(dims, 4)},
                                    dtype);
        const OracleResult expected = oracle(c);
        Rig rig(dtype);
        const ValueId qkv = rig.input(c.inputs[0]), wq = rig.input(c.inputs[1]),
                      wk = rig.input(c.inputs[2]);
        const ValueId dy = rig.input(c.gradient), y = rig.output(dims), dqkv = rig.output(dims);
        const ValueId rstd = rig.statistic({tokens, heads.query_heads + heads.kv_heads});
        const ValueId dwq = rig.output({heads.head_size}), dwk = rig.output({heads.head_size});
        rig.run(OpKind::kQkNorm, {qkv, wq, wk}, {y, rstd}, heads);
        rig.run(OpKind::kQkNormDgrad, {dy, qkv, rstd, wq, wk}, {dqkv}, heads);
        rig.run(OpKind::kQkNormWgrad, {dy, qkv, rstd}, {dwq, dwk}, heads);
        REQUIRE(relative_error(rig.read(y), expected.outputs[0]) < tolerance(dtype));
        REQUIRE(relative_error(rig.read(rstd), expected.outputs[1]) < tolerance(dtype));
        REQUIRE(relative_error(rig.read(dqkv), expected.gradients[0]) < tolerance(dtype));
        REQUIRE(relative_error(rig.read(dwq), expected.gradients[1]) < tolerance(dtype));
        REQUIRE(relative_error(rig.read(dwk), expected.gradients[2]) < tolerance(dtype));
      }
  });
}

}  // namespace
}  // namespace ftrun::test
