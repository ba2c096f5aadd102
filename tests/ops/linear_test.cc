#include "ops/linear/linear.h"
#include "each_matmul_library.h"
#include "ops/kinds.h"
#include "ops/lora/lora.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
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

// Gradients are added to what is already in their memory; dx is added to `addend`.
TEST_CASE("linear with and without bias and its gradients agree with autograd", "[matmul]") {
  for_each_library_and_dtype([](DType dtype) {
    for (const Shape& s : kShapes)
      for (const bool bias : {false, true}) {
        CAPTURE(dtype_name(dtype), s.tokens, s.outputs, s.inputs, bias);
        const OracleCase c = round_to_stored(linear_case(s, bias), dtype);
        const OracleResult expected = oracle(c);
        OperationRunner runner(dtype);
        const ValueId x = runner.input(c.inputs[0]), w = runner.input(c.inputs[1]),
                      dy = runner.input(c.gradient);
        const ValueId y = runner.output({s.tokens, s.outputs}),
                      dx = runner.output({s.tokens, s.inputs});
        std::vector<ValueId> in{x, w};
        if (bias) in.push_back(runner.input(c.inputs[2]));
        runner.run(OpKind::kLinear, in, {y});
        runner.run(OpKind::kLinearDgrad, {dy, w}, {dx});
        REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) < tolerance(dtype));
      }
  });
}

QuantizedFormat nf4(int64_t block, bool double_quantized, bool holds_scales = false) {
  return {QuantizationType::kNf4, block, double_quantized, holds_scales};
}

TEST_CASE(
    "linear and its input gradient with quantized weights agree with autograd on the decoded "
    "numbers",
    "[matmul]") {
  for_each_library_and_dtype([](DType dtype) {
    // The shapes cover rows that are no multiple of a record or block, several panels of rows and
    // of columns, and a short last block.
    for (const Shape& s : {Shape{7, 5, 64}, Shape{65, 36, 192}, Shape{3, 1100, 64},
                           Shape{3, 12, 2112}, Shape{2, 7, 36}, Shape{2100, 16, 64}})
      for (const QuantizedFormat& format :
           {nf4(64, false), nf4(64, true), nf4(128, true, true), nf4(256, false),
            QuantizedFormat{QuantizationType::kInt8}})
        for (const bool bias : {false, true}) {
          if (format.type == QuantizationType::kInt8 && s.inputs % format.block != 0) continue;
          CAPTURE(dtype_name(dtype), s.tokens, s.outputs, s.inputs, format.block,
                  static_cast<int>(format.type), bias);
          OracleCase c = round_to_stored(linear_case(s, bias), dtype);
          OperationRunner runner(dtype);
          const Array matrix = c.inputs[1];
          c.inputs[1] = rounded(quantized_array(matrix, format).numbers, dtype);
          const OracleResult expected = oracle(c);
          const ValueId x = runner.input(c.inputs[0]), w = runner.quantized(matrix, format),
                        dy = runner.input(c.gradient);
          const ValueId y = runner.output({s.tokens, s.outputs}),
                        dx = runner.output({s.tokens, s.inputs});
          std::vector<ValueId> in{x, w};
          if (bias) in.push_back(runner.input(c.inputs[2]));
          runner.run(OpKind::kLinear, in, {y});
          REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
          runner.run(OpKind::kLinearDgrad, {dy, w}, {dx});
          REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) < tolerance(dtype));
          if (bias) continue;
          const Array before = rounded(random_array({s.tokens, s.inputs}, 7), dtype);
          const ValueId sum = runner.output({s.tokens, s.inputs});
          runner.run(OpKind::kLinearDgrad, {dy, w, runner.input(before)}, {sum});
          REQUIRE(relative_error(runner.read(sum), array_sum(expected.gradients[0], before)) <
                  tolerance(dtype));
        }
  });
}

TEST_CASE("weight and bias gradients either replace or add to what is in memory", "[matmul]") {
  for_each_library_and_dtype([](DType dtype) {
    for (const Shape& s : kShapes) {
      CAPTURE(dtype_name(dtype), s.tokens, s.outputs, s.inputs);
      const OracleCase c = round_to_stored(linear_case(s, true), dtype);
      const OracleResult expected = oracle(c);
      const Array before_w = rounded(random_array({s.outputs, s.inputs}, 5), dtype),
                  before_b = rounded(random_array({s.outputs}, 6), dtype);
      OperationRunner runner(dtype);
      const ValueId x = runner.input(c.inputs[0]), dy = runner.input(c.gradient);
      const ValueId dw = runner.output({s.outputs, s.inputs}), db = runner.output({s.outputs});
      runner.run(OpKind::kLinearWgrad, {dy, x}, {dw});
      runner.run(OpKind::kBiasWgrad, {dy}, {db});
      REQUIRE(relative_error(runner.read(dw), expected.gradients[1]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(db), expected.gradients[2]) < tolerance(dtype));
      const ValueId more_w = runner.input(before_w), more_b = runner.input(before_b);
      runner.run(OpKind::kLinearWgrad, {dy, x}, {more_w}, NoAttrs{}, true);
      runner.run(OpKind::kBiasWgrad, {dy}, {more_b}, NoAttrs{}, true);
      REQUIRE(relative_error(runner.read(more_w), array_sum(before_w, expected.gradients[1])) <
              tolerance(dtype));
      REQUIRE(relative_error(runner.read(more_b), array_sum(before_b, expected.gradients[2])) <
              tolerance(dtype));
    }
  });
}

TEST_CASE("a linear layer's input gradient is added to another operation's result, in place or not",
          "[matmul]") {
  for_each_library_and_dtype([](DType dtype) {
    for (const Shape& s : kShapes) {
      CAPTURE(dtype_name(dtype), s.tokens, s.outputs, s.inputs);
      const OracleCase c = round_to_stored(linear_case(s, false), dtype);
      const Array before = rounded(random_array({s.tokens, s.inputs}, 5), dtype);
      const Array expected = array_sum(before, oracle(c).gradients[0]);
      OperationRunner runner(dtype);
      const ValueId w = runner.input(c.inputs[1]), dy = runner.input(c.gradient),
                    e = runner.input(before);
      const ValueId apart = runner.output({s.tokens, s.inputs});
      runner.run(OpKind::kLinearDgrad, {dy, w, e}, {apart});
      REQUIRE(relative_error(runner.read(apart), expected) < tolerance(dtype));
      runner.run(OpKind::kLinearDgrad, {dy, w, e}, {e});
      REQUIRE(runner.bits(e) == runner.bits(apart));
    }
  });
}

struct LoraCase {
  int64_t tokens, outputs;
  struct Part {
    int64_t first_column, columns, rank;
    double scale;
  };
  std::vector<Part> parts;
};
const std::vector<LoraCase> kLoraCases{
    {1, 1, {{0, 1, 1, 1.0}}},
    {7, 20, {{4, 9, 3, 2.0}}},
    {65, 48, {{0, 16, 4, 2.0}, {32, 16, 8, 0.5}}},
    {130, 96, {{0, 48, 16, 1.7}, {48, 24, 5, 0.3}, {72, 24, 300, 1.0}}},
};

OracleCase lora_case(const LoraCase& s) {
  int64_t ranks = 0;
  LoraAttrs attrs;
  for (const LoraCase::Part& part : s.parts) {
    attrs.parts.push_back({part.first_column, part.scale});
    ranks += part.rank;
  }
  OracleCase c{OpKind::kLoraUp,
               attrs,
               {random_array({s.tokens, s.outputs}, 1), random_array({s.tokens, ranks}, 2)}};
  for (const LoraCase::Part& part : s.parts)
    c.inputs.push_back(random_array({part.columns, part.rank}, 3 + c.inputs.size()));
  c.gradient = random_array({s.tokens, s.outputs}, 11);
  return c;
}

/// Returns the tolerance of an adapter's multiplication, whose scaling rounds to 16 bits once more.
double lora_tolerance(DType dtype) {
  return tolerance(dtype) + (is_narrow(dtype) ? 2 * unit_roundoff(dtype) : 0);
}

TEST_CASE("low-rank adapters of parts of a linear layer and their gradients agree with autograd",
          "[matmul]") {
  for_each_library_and_dtype([](DType dtype) {
    for (const LoraCase& s : kLoraCases) {
      CAPTURE(dtype_name(dtype), s.tokens, s.outputs, s.parts.size());
      const OracleCase c = round_to_stored(lora_case(s), dtype);
      const OracleResult expected = oracle(c);
      OperationRunner runner(dtype);
      const ValueId y = runner.input(c.inputs[0]), h = runner.input(c.inputs[1]),
                    dy = runner.input(c.gradient);
      std::vector<ValueId> up, in{y, h}, dgrad{dy}, grads, more;
      std::vector<Array> before;
      for (size_t p = 2; p < c.inputs.size(); ++p) {
        up.push_back(runner.input(c.inputs[p]));
        grads.push_back(runner.output(c.inputs[p].dims));
        before.push_back(rounded(random_array(c.inputs[p].dims, 20 + p), dtype));
        more.push_back(runner.input(before.back()));
      }
      in.insert(in.end(), up.begin(), up.end());
      dgrad.insert(dgrad.end(), up.begin(), up.end());
      const ValueId sum = runner.output(c.inputs[0].dims), dh = runner.output(c.inputs[1].dims);
      runner.run(OpKind::kLoraUp, in, {sum}, c.attrs);
      runner.run(OpKind::kLoraUpDgrad, dgrad, {dh}, c.attrs);
      runner.run(OpKind::kLoraUpWgrad, {dy, h}, grads, c.attrs);
      runner.run(OpKind::kLoraUpWgrad, {dy, h}, more, c.attrs, true);
      REQUIRE(relative_error(runner.read(sum), expected.outputs[0]) < lora_tolerance(dtype));
      REQUIRE(relative_error(runner.read(dh), expected.gradients[1]) < lora_tolerance(dtype));
      for (size_t p = 0; p < grads.size(); ++p) {
        REQUIRE(relative_error(runner.read(grads[p]), expected.gradients[2 + p]) <
                lora_tolerance(dtype));
        REQUIRE(
            relative_error(runner.read(more[p]), array_sum(before[p], expected.gradients[2 + p])) <
            lora_tolerance(dtype));
      }
      runner.run(OpKind::kLoraUp, in, {y}, c.attrs);
      REQUIRE(runner.bits(y) == runner.bits(sum));
    }
  });
}

TEST_CASE("a linear layer leaves out a bias that another rank adds") {
  for_each_dtype([](DType dtype) {
    OperationRunner runner(dtype);
    const ValueId x = runner.input(random_array({5, 7}, 1)),
                  w = runner.input(random_array({6, 7}, 2));
    const ValueId b = runner.input(random_array({6}, 3)), plain = runner.output({5, 6}),
                  left = runner.output({5, 6}), added = runner.output({5, 6});
    runner.run(OpKind::kLinear, {x, w}, {plain});
    runner.run(OpKind::kLinear, {x, w, b}, {left},
               LinearAttrs{.gradient_ranks = 1, .adds_bias = false});
    runner.run(OpKind::kLinear, {x, w, b}, {added}, LinearAttrs{.gradient_ranks = 4});
    REQUIRE(runner.bits(left) == runner.bits(plain));
    REQUIRE(runner.bits(added) != runner.bits(plain));
  });
}

}  // namespace
}  // namespace ftrun::testing
