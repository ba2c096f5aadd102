#include "products_rig.h"

#include <catch2/catch.hpp>

namespace ftrun::test {
namespace {

struct Shape {
  int64_t tokens, outputs, inputs;
};
const std::vector<Shape> kShapes{{1, 1, 1}, {7, 5, 3}, {65, 33, 17}, {130, 48, 96}};

OracleCase linear_case(const Shape& s, bool bias) {
  OracleCase c{OpKind::kLinear,
               NoAttrs{},
               {random_array({s.tokens, s.inputs}, 1), random_array({s.outputs, s.inputs}, 2)}};
  if (bias) c.inputs.push_back(random_array({s.outputs}, 3));
  c.gradient = random_array({s.tokens, s.outputs}, 4);
  return c;
}

// What is already in a gradient, plus `addend`.
TEST_CASE("linear with and without bias and its gradients agree with autograd", "[products]") {
  for_each_multiplier([](DType dtype) {
    for (const Shape& s : kShapes)
      for (const bool bias : {false, true}) {
        CAPTURE(dtype_name(dtype), s.tokens, s.outputs, s.inputs, bias);
        const OracleCase c = stored(linear_case(s, bias), dtype);
        const OracleResult expected = oracle(c);
        Rig rig(dtype);
        const ValueId x = rig.input(c.inputs[0]), w = rig.input(c.inputs[1]),
                      dy = rig.input(c.gradient);
        const ValueId y = rig.output({s.tokens, s.outputs}), dx = rig.output({s.tokens, s.inputs});
        std::vector<ValueId> in{x, w};
        if (bias) in.push_back(rig.input(c.inputs[2]));
        rig.run(OpKind::kLinear, in, {y});
        rig.run(OpKind::kLinearDgrad, {dy, w}, {dx});
        REQUIRE(relative_error(rig.read(y), expected.outputs[0]) < tolerance(dtype));
        REQUIRE(relative_error(rig.read(dx), expected.gradients[0]) < tolerance(dtype));
      }
  });
}

TEST_CASE("weight and bias gradients are written over or added to", "[products]") {
  for_each_multiplier([](DType dtype) {
    for (const Shape& s : kShapes) {
      CAPTURE(dtype_name(dtype), s.tokens, s.outputs, s.inputs);
      const OracleCase c = stored(linear_case(s, true), dtype);
      const OracleResult expected = oracle(c);
      const Array before_w = rounded(random_array({s.outputs, s.inputs}, 5), dtype),
                  before_b = rounded(random_array({s.outputs}, 6), dtype);
      Rig rig(dtype);
      const ValueId x = rig.input(c.inputs[0]), dy = rig.input(c.gradient);
      const ValueId dw = rig.output({s.outputs, s.inputs}), db = rig.output({s.outputs});
      rig.run(OpKind::kLinearWgrad, {dy, x}, {dw});
      rig.run(OpKind::kBiasWgrad, {dy}, {db});
      REQUIRE(relative_error(rig.read(dw), expected.gradients[1]) < tolerance(dtype));
      REQUIRE(relative_error(rig.read(db), expected.gradients[2]) < tolerance(dtype));
      const ValueId more_w = rig.input(before_w), more_b = rig.input(before_b);
      rig.run(OpKind::kLinearWgrad, {dy, x}, {more_w}, NoAttrs{}, true);
      rig.run(OpKind::kBiasWgrad, {dy}, {more_b}, NoAttrs{}, true);
      REQUIRE(relative_error(rig.read(more_w), plus(before_w, expected.gradients[1])) <
              tolerance(dtype));
      REQUIRE(relative_error(rig.read(more_b), plus(before_b, expected.gradients[2])) <
              tolerance(dtype));
    }
  });
}

}  // namespace
}  // namespace ftrun::test
