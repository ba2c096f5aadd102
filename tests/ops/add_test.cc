#include "ops/kinds.h"
#include "rig.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

TEST_CASE("add agrees with autograd, also in place") {
  for_each_dtype([](DType dtype) {
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

}  // namespace
}  // namespace ftrun::testing
