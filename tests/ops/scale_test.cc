#include "ops/scale/scale.h"
#include "operation_runner.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

TEST_CASE("scale and its gradient agree with autograd, also in place") {
  for_each_dtype([](DType dtype) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1, 1}, {3, 7}, {65, 576}}) {
      const OracleCase c = round_to_stored(
          {OpKind::kScale, ScaleAttrs{-0.22}, {random_array(dims, 1)}, {}, random_array(dims, 3)},
          dtype);
      const OracleResult expected = oracle(c);
      OperationRunner runner(dtype);
      const ValueId x = runner.input(c.inputs[0]), y = runner.output(dims);
      const ValueId dy = runner.input(c.gradient), dx = runner.output(dims);
      runner.run(OpKind::kScale, {x}, {y}, c.attrs);
      runner.run(OpKind::kScale, {dy}, {dx}, c.attrs);
      REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) < tolerance(dtype));
      runner.run(OpKind::kScale, {x}, {x}, c.attrs);
      REQUIRE(runner.bits(x) == runner.bits(y));
    }
  });
}

}  // namespace
}  // namespace ftrun::testing
