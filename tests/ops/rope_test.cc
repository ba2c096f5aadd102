#include <cmath>

#include "operation_runner.h"
#include "ops/heads.h"
#include "ops/kinds.h"
#include "ops/rope/rope.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

/// RotatedHeads describes heads of which `elements` elements are rotated, by the angles from
/// `first` on of a table that has `more` angles after them.
struct RotatedHeads {
  HeadAttrs heads;
  int64_t elements;
  int64_t first = 0;
  int64_t more = 0;
};
const std::vector<RotatedHeads> kHeads{
    {{1, 1, 2}, 2},   {{3, 1, 10}, 10}, {{4, 2, 64}, 64},     {{2, 2, 72}, 72},     {{3, 1, 10}, 4},
    {{4, 2, 64}, 16}, {{2, 1, 96}, 72}, {{4, 2, 64}, 64, 32}, {{2, 1, 10}, 4, 3, 5}};

/// Makes the table of cosines and sines for `head_size` rotated elements.
Array rope_values(int64_t tokens, int64_t head_size) {
  Array table{{tokens, head_size}, {}};
  for (int64_t n = 0; n < tokens; ++n)
    for (int64_t i = 0; i < head_size; ++i) {
      const double angle = static_cast<double>(n * 7 + i % (head_size / 2)) * 0.37;
      table.data.push_back(
          static_cast<float>(i < head_size / 2 ? std::cos(angle) : std::sin(angle)));
    }
  return table;
}

TEST_CASE(
    "rope on halves or on neighbors, of whole or partly rotated heads, and its gradient agree "
    "with autograd, also in place") {
  for_each_dtype([](DType dtype) {
    for (const auto& [heads, turning, first, more] : kHeads)
      for (const auto& [tokens, pairs] :
           {std::pair{1, false}, {33, false}, {1, true}, {33, true}}) {
        CAPTURE(dtype_name(dtype), heads.query_heads, heads.head_size, turning, first, tokens,
                pairs);
        const int64_t angles = first + turning / 2 + more;
        const RopeAttrs attrs{heads, first, angles > turning / 2 ? turning / 2 : 0, pairs};
        const std::vector<int64_t> dims{tokens,
                                        (heads.query_heads + 2 * heads.kv_heads) * heads.head_size};
        const OracleCase c =
            round_to_stored({OpKind::kRope,
                             attrs,
                             {random_array(dims, 1), rope_values(tokens, 2 * angles)},
                             {},
                             random_array(dims, 2)},
                            dtype);
        const OracleResult expected = oracle(c);
        OperationRunner runner(dtype);
        const ValueId qkv = runner.input(c.inputs[0]),
                      table = runner.input(c.inputs[1], DType::kF32);
        const ValueId dy = runner.input(c.gradient), y = runner.output(dims),
                      dx = runner.output(dims);
        runner.run(OpKind::kRope, {qkv, table}, {y}, attrs);
        runner.run(OpKind::kRopeDgrad, {dy, table}, {dx}, attrs);
        REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) < tolerance(dtype));
        runner.run(OpKind::kRope, {qkv, table}, {qkv}, attrs);
        runner.run(OpKind::kRopeDgrad, {dy, table}, {dy}, attrs);
        REQUIRE(runner.bits(qkv) == runner.bits(y));
        REQUIRE(runner.bits(dy) == runner.bits(dx));
      }
  });
}

TEST_CASE(
    "the rope table holds cos, then sin, of position times frequency in fp32, times the "
    "angle's magnitude") {
  const std::vector<RopeAngle> angles{{1.0, 1.25}, {0.1, 1.0}, {0.0123456789, 1.25}};
  const std::vector<int32_t> positions{0, 1, 511, 8191};
  OperationRunner runner(DType::kF32);
  const ValueId in = runner.ints(positions), table = runner.output({4, 6});
  runner.run(OpKind::kRopeTable, {in}, {table}, RopeTableAttrs{angles});
  const Array actual = runner.read(table);
  for (size_t n = 0; n < positions.size(); ++n)
    for (size_t i = 0; i < angles.size(); ++i) {
      const auto& [frequency, magnitude] = angles[i];
      const double angle = static_cast<float>(positions[n]) * static_cast<float>(frequency);
      REQUIRE(actual.data[n * 6 + i] == Approx(magnitude * std::cos(angle)).margin(1e-7));
      REQUIRE(actual.data[n * 6 + 3 + i] == Approx(magnitude * std::sin(angle)).margin(1e-7));
    }
}

}  // namespace
}  // namespace ftrun::testing
