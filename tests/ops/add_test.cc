#include "operation_runner.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

TEST_CASE("add agrees with autograd, also in place") {
  for_each_dtype([](DType dtype) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1, 1}, {3, 7}, {65, 576}}) {
      const OracleCase c = round_to_stored({OpKind::kAdd,
                                            NoAttrs{},
                                            {random_array(dims, 1), random_array(dims, 2)},
                                            {},
                                            random_array(dims, 3)},
                                           dtype);
      const OracleResult expected = oracle(c);
      OperationRunner runner(dtype);
      const ValueId a = runner.input(c.inputs[0]), b = runner.input(c.inputs[1]),
                    sum = runner.output(dims);
      runner.run(OpKind::kAdd, {a, b}, {sum});
      REQUIRE(relative_error(runner.read(sum), expected.outputs[0]) < tolerance(dtype));
      runner.run(OpKind::kAdd, {a, b}, {a});
      REQUIRE(runner.bits(a) == runner.bits(sum));
    }
  });
}

}  // namespace
}  // namespace ftrun::testing
