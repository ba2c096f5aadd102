#include "ops/scale/scale.h"
#include "ops/kinds.h"
#include "rig.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

TEST_CASE("scale and its gradient agree with autograd, also in place") {
  for_each_dtype([](DType dtype) {
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

}  // namespace
}  // namespace ftrun::testing
