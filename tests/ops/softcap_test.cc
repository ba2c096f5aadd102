#include "ops/softcap/softcap.h"
#include "operation_runner.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

TEST_CASE("softcap and its gradient agree with autograd, also in place") {
  for_each_dtype([](DType dtype) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1, 1}, {3, 7}, {65, 576}})
      for (const double size : {1e-3, 1.0, 40.0}) {
        CAPTURE(dtype_name(dtype), dims[1], size);
        OracleCase c{OpKind::kSoftcap,
                     SoftcapAttrs{2.5},
                     {random_array(dims, 1)},
                     {},
                     random_array(dims, 3)};
        for (double& v : c.inputs[0].data) v *= size;
        c = round_to_stored(c, dtype);
        const OracleResult expected = oracle(c);
        OperationRunner runner(dtype);
        const ValueId x = runner.input(c.inputs[0]), y = runner.output(dims);
        const ValueId dy = runner.input(c.gradient), dx = runner.output(dims);
        runner.run(OpKind::kSoftcap, {x}, {y}, c.attrs);
        REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
        runner.run(OpKind::kSoftcap, {x}, {x}, c.attrs);
        REQUIRE(runner.bits(x) == runner.bits(y));
        // The derivative is computed from the stored result, which near the bound has few exact
        // digits.
        if (size > 1.0 && dtype != DType::kF64) continue;
        runner.run(OpKind::kSoftcapDgrad, {dy, y}, {dx}, c.attrs);
        const double stored_y = is_narrow(dtype) ? 4 * unit_roundoff(dtype) : 0.0;
        REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) <
                tolerance(dtype) + stored_y);
        runner.run(OpKind::kSoftcapDgrad, {dy, y}, {dy}, c.attrs);
        REQUIRE(runner.bits(dy) == runner.bits(dx));
      }
  });
}

TEST_CASE("softcap gives the values of an example computed by hand") {
  OperationRunner runner(DType::kF32);
  const ValueId x = runner.input({{1, 5}, {-90.0, -1.5, 0.0, 0.01, 30.0}}),
                y = runner.output({1, 5});
  runner.run(OpKind::kSoftcap, {x}, {y}, SoftcapAttrs{30.0});
  const std::vector<double> expected{-29.85164261, -1.498751249, 0.0, 0.009999999630, 22.84782468};
  for (size_t i = 0; i < 5; ++i)
    REQUIRE(runner.read(y).data[i] == Approx(expected[i]).epsilon(3e-7).margin(1e-12));
}

}  // namespace
}  // namespace ftrun::testing
