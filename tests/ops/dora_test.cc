#include <cmath>

#include "each_matmul_library.h"
#include "ops/dora/dora.h"
#include "ops/dropout/dropout.h"
#include "ops/kinds.h"
#include "ops/lora/lora.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

struct LengthsCase {
  int64_t outputs, inputs;
  struct Part {
    int64_t first_column, columns, rank;
    double scale;
  };
  std::vector<Part> parts;
};

OracleCase lengths_case(const LengthsCase& s) {
  LoraAttrs attrs;
  int64_t ranks = 0, rows = 0;
  for (const LengthsCase::Part& part : s.parts) {
    attrs.parts.push_back({part.first_column, part.scale});
    ranks += part.rank;
    rows += part.columns;
  }
  OracleCase c{OpKind::kDoraSquaredLengths,
               attrs,
               {random_array({s.outputs, s.inputs}, 1), random_array({ranks, s.inputs}, 2)}};
  for (const LengthsCase::Part& part : s.parts)
    c.inputs.push_back(random_array({part.columns, part.rank}, 3 + c.inputs.size()));
  c.gradient = random_array({rows}, 11);
  return c;
}

Array squared_row_lengths(OperationRunner& runner, const OracleCase& c, ValueId weight) {
  std::vector<ValueId> in{weight};
  for (size_t i = 1; i < c.inputs.size(); ++i) in.push_back(runner.input(c.inputs[i]));
  const ValueId squares = runner.statistic({c.gradient.dims[0]});
  runner.run(OpKind::kDoraSquaredLengths, in, {squares}, c.attrs);
  return runner.read(squares);
}

/// Returns the tolerance of row lengths, which are not rounded to 16 bits on the way.
double lengths_tolerance(DType dtype) {
  return tolerance(dtype == DType::kF64 ? dtype : DType::kF32);
}

TEST_CASE("row lengths of a matrix and its adapters agree with those of their sum", "[matmul]") {
  for_each_library_and_dtype([](DType dtype) {
    // The last case has more than one panel of rows.
    for (const LengthsCase& s :
         {LengthsCase{1, 1, {{0, 1, 1, 1.0}}}, LengthsCase{20, 7, {{4, 9, 3, 2.0}}},
          LengthsCase{48, 33, {{0, 16, 4, 2.0}, {32, 16, 8, 0.5}}},
          LengthsCase{150, 8200, {{0, 130, 2, 1.7}, {130, 12, 1, 0.3}, {142, 8, 20, 1.0}}}}) {
      CAPTURE(dtype_name(dtype), s.outputs, s.inputs, s.parts.size());
      const OracleCase c = round_to_stored(lengths_case(s), dtype);
      OperationRunner runner(dtype);
      REQUIRE(relative_error(squared_row_lengths(runner, c, runner.input(c.inputs[0])),
                             oracle(c).outputs[0]) < lengths_tolerance(dtype));
    }
  });
}

TEST_CASE("row lengths of a quantized matrix with adapters are those of the decoded numbers",
          "[matmul]") {
  for_each_library_and_dtype([](DType dtype) {
    for (const QuantizedFormat& format : {QuantizedFormat{QuantizationType::kNf4, 64, true},
                                          QuantizedFormat{QuantizationType::kInt8}}) {
      CAPTURE(dtype_name(dtype), static_cast<int>(format.type));
      OracleCase c =
          round_to_stored(lengths_case({36, 256, {{0, 20, 4, 2.0}, {28, 8, 3, 0.5}}}), dtype);
      OperationRunner runner(dtype);
      const ValueId weight = runner.quantized(c.inputs[0], format);
      c.inputs[0] = rounded(quantized_array(c.inputs[0], format).numbers, dtype);
      REQUIRE(relative_error(squared_row_lengths(runner, c, weight), oracle(c).outputs[0]) <
              lengths_tolerance(dtype));
    }
  });
}

struct ScaleCase {
  int64_t tokens, outputs;
  std::vector<DoraAttrs::ScaledColumns> parts;
};
const std::vector<ScaleCase> kScaleCases{{1, 1, {{0, 1}}},
                                         {7, 20, {{4, 9}}},
                                         {65, 48, {{0, 16}, {32, 16}}},
                                         {130, 600, {{0, 300}, {300, 20}, {340, 260}}}};

/// Makes a case whose squares and magnitudes keep the precision of statistics in every dtype.
OracleCase scale_case(const ScaleCase& s, DType dtype) {
  int64_t rows = 0;
  for (const DoraAttrs::ScaledColumns& part : s.parts) rows += part.columns;
  OracleCase c{OpKind::kDoraScale,
               DoraAttrs{s.parts},
               {random_array({s.tokens, s.outputs}, 1),
                {},
                random_array({rows}, 3),
                random_array({s.outputs}, 4)}};
  c.inputs[1] = {{rows}, std::vector<double>(static_cast<size_t>(rows), 1.0)};
  c.gradient = random_array({s.tokens, s.outputs}, 5);
  c = round_to_stored(c, dtype);
  c.inputs[1] = random_array({rows}, 2);
  if (dtype != DType::kF64) c.inputs[2] = rounded(random_array({rows}, 3), DType::kF32);
  for (double& square : c.inputs[1].data)
    square = static_cast<double>(static_cast<float>(square * square + 0.25));
  return c;
}

TEST_CASE("columns scaled by magnitudes and their gradients agree with autograd, in place or not") {
  for_each_dtype([](DType dtype) {
    for (const ScaleCase& s : kScaleCases) {
      CAPTURE(dtype_name(dtype), s.tokens, s.outputs, s.parts.size());
      const OracleCase c = scale_case(s, dtype);
      const OracleResult expected = oracle(c);
      OperationRunner runner(dtype);
      const DType statistics = dtype == DType::kF64 ? dtype : DType::kF32;
      const ValueId z = runner.input(c.inputs[0]), q = runner.input(c.inputs[1], statistics),
                    m = runner.input(c.inputs[2], statistics), bias = runner.input(c.inputs[3]),
                    dy = runner.input(c.gradient);
      const ValueId y = runner.output(c.inputs[0].dims), dz = runner.output(c.inputs[0].dims),
                    dm = runner.output(c.inputs[2].dims);
      const Array before = rounded(random_array(c.inputs[2].dims, 7), dtype);
      const ValueId more = runner.input(before);
      runner.run(OpKind::kDoraScale, {z, q, m, bias}, {y}, c.attrs);
      runner.run(OpKind::kDoraScaleDgrad, {dy, q, m}, {dz}, c.attrs);
      runner.run(OpKind::kDoraScaleWgrad, {dy, z, q}, {dm}, c.attrs);
      runner.run(OpKind::kDoraScaleWgrad, {dy, z, q}, {more}, c.attrs, true);
      REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(dz), expected.gradients[0]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(dm), expected.gradients[2]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(more), array_sum(before, expected.gradients[2])) <
              tolerance(dtype));
      DoraAttrs without = c.attrs.get<DoraAttrs>();
      without.adds_bias = false;
      const ValueId plain = runner.output(c.inputs[0].dims),
                    other = runner.output(c.inputs[0].dims);
      runner.run(OpKind::kDoraScale, {z, q, m}, {plain}, c.attrs);
      runner.run(OpKind::kDoraScale, {z, q, m, bias}, {other}, without);
      REQUIRE(runner.bits(plain) == runner.bits(other));
      REQUIRE(runner.bits(plain) != runner.bits(y));
      runner.run(OpKind::kDoraScale, {z, q, m, bias}, {z}, c.attrs);
      REQUIRE(runner.bits(z) == runner.bits(y));
      runner.run(OpKind::kDoraScaleDgrad, {dy, q, m}, {dy}, c.attrs);
      REQUIRE(runner.bits(dy) == runner.bits(dz));
    }
  });
}

TEST_CASE("DoRA magnitudes equal to the row lengths change no bit") {
  for_each_dtype([](DType dtype) {
    CAPTURE(dtype_name(dtype));
    OperationRunner runner(dtype);
    const DType statistics = dtype == DType::kF64 ? dtype : DType::kF32;
    const int64_t width = 600;
    Array lengths{{width}, {}}, squares{{width}, {}};
    for (int64_t i = 0; i < width; ++i) {
      // Lengths have more digits than 16 bits hold, but their squares are exact.
      lengths.data.push_back(0.5 + static_cast<double>(i) / 2048);
      squares.data.push_back(lengths.data.back() * lengths.data.back());
    }
    const ValueId z = runner.input(rounded(random_array({9, width}, 1), dtype)),
                  y = runner.output({9, width});
    runner.run(OpKind::kDoraScale,
               {z, runner.input(squares, statistics), runner.input(lengths, statistics)}, {y},
               DoraAttrs{{{0, width}}});
    REQUIRE(runner.bits(y) == runner.bits(z));
  });
}

TEST_CASE("a row of zeros stays zero, and a NaN of the statistics reaches the result") {
  for_each_dtype([](DType dtype) {
    OperationRunner runner(dtype);
    const DType statistics = dtype == DType::kF64 ? dtype : DType::kF32;
    const DoraAttrs attrs{{{0, 2}}};
    const ValueId z = runner.input({{1, 2}, {0.0, 3.0}}),
                  q = runner.input({{2}, {0.0, 4.0}}, statistics),
                  m = runner.input({{2}, {0.0, 1.0}}, statistics);
    const ValueId y = runner.output({1, 2}), dm = runner.output({2});
    runner.run(OpKind::kDoraScale, {z, q, m}, {y}, attrs);
    runner.run(OpKind::kDoraScaleWgrad, {z, z, q}, {dm}, attrs);
    CHECK(runner.read(y).data == std::vector<double>{0.0, 1.5});
    CHECK(runner.read(dm).data == std::vector<double>{0.0, 4.5});
    const ValueId broken = runner.input({{2}, {0.0, std::nan("")}}, statistics);
    runner.run(OpKind::kDoraScale, {z, broken, m}, {y}, attrs);
    CHECK(std::isnan(runner.read(y).data[1]));
  });
}

TEST_CASE(
    "the elements that dropout keeps and those that it drops add up to the input, also in place") {
  for_each_dtype([](DType dtype) {
    for (const int64_t width : {1, 13, 600, 4200}) {
      CAPTURE(dtype_name(dtype), width);
      const Array x = rounded(random_array({9, width}, 1), dtype);
      DropoutAttrs attrs{0.3, 2, 4090};
      OperationRunner runner(dtype);
      runner.scalars.dropout_key = dropout_key(1, 2);
      const ValueId from = runner.input(x), kept = runner.output({9, width}),
                    rest = runner.output({9, width});
      runner.run(OpKind::kDropout, {from}, {kept}, attrs);
      attrs.returns_dropped_part = true;
      runner.run(OpKind::kDropout, {from}, {rest}, attrs);
      REQUIRE(relative_error(array_sum(runner.read(kept), runner.read(rest)), x) <
              tolerance(dtype));
      const Array left = runner.read(kept), other = runner.read(rest);
      for (size_t i = 0; i < x.data.size(); ++i)
        REQUIRE((left.data[i] != 0 || other.data[i] == x.data[i]));
      runner.run(OpKind::kDropout, {from}, {from}, attrs);
      REQUIRE(runner.bits(from) == runner.bits(rest));
    }
  });
}

}  // namespace
}  // namespace ftrun::testing
