#include <cmath>

#include "operation_runner.h"
#include "ops/attention/attention.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

struct AttentionCase {
  AttentionAttrs attrs;
  int64_t rows;
  /// First token of each document that is packed into a row.
  std::vector<int64_t> documents;
};

AttentionAttrs attention_attrs(int64_t query_heads, int64_t kv_heads, int64_t head_size,
                               int64_t sequence_length, int64_t window = 0, double softcap = 0) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_size));
  return {query_heads, kv_heads, head_size, sequence_length, scale, window, softcap};
}

const std::vector<AttentionCase> kCases{
    {attention_attrs(1, 1, 2, 1), 1, {0}},
    {attention_attrs(2, 1, 6, 5), 3, {0, 2}},
    {attention_attrs(3, 3, 16, 64), 1, {0}},
    {attention_attrs(4, 2, 20, 65), 2, {0}},
    {attention_attrs(9, 3, 64, 200), 1, {0}},
    {attention_attrs(9, 3, 64, 200), 2, {0, 1, 70, 130, 199}},
    {attention_attrs(4, 1, 32, 300, 1), 1, {0}},
    {attention_attrs(4, 1, 32, 300, 17), 1, {0}},
    {attention_attrs(2, 2, 48, 330, 100), 1, {0, 64, 65, 250}},
    {attention_attrs(2, 1, 128, 520), 1, {0, 300}},
    {attention_attrs(16, 8, 8, 130, 70), 1, {0, 128}},
    {attention_attrs(4, 2, 20, 65, 0, 1.5), 2, {0, 30}},
    {attention_attrs(2, 1, 64, 200, 90, 0.75), 1, {0}},
};

std::vector<int32_t> starts_of(const AttentionCase& c) {
  std::vector<int32_t> starts;
  for (int64_t row = 0; row < c.rows; ++row)
    for (int64_t t = 0; t < c.attrs.sequence_length; ++t) {
      int64_t start = 0;
      // The rows differ: each has fewer documents than the one before.
      for (size_t i = 0; i + static_cast<size_t>(row) < c.documents.size(); ++i)
        if (c.documents[i] <= t) start = c.documents[i];
      starts.push_back(static_cast<int32_t>(start));
    }
  return starts;
}

OracleCase attention_oracle(const AttentionCase& c, double spread) {
  const AttentionAttrs& a = c.attrs;
  const int64_t tokens = c.rows * a.sequence_length;
  OracleCase o{OpKind::kAttention,
               a,
               {random_array({tokens, (a.query_heads + 2 * a.kv_heads) * a.head_size}, 1)},
               starts_of(c),
               random_array({tokens, a.query_heads * a.head_size}, 2)};
  for (double& v : o.inputs[0].data) v *= spread;
  return o;
}

/// ForwardRun holds the values of a completed forward pass.
struct ForwardRun {
  ValueId qkv, starts, a, lse;
};
ForwardRun run_forward(OperationRunner& runner, const AttentionCase& c, const OracleCase& o) {
  const ForwardRun f{runner.input(o.inputs[0]), runner.ints(o.ints), runner.output(o.gradient.dims),
                     runner.statistic({c.attrs.query_heads, o.inputs[0].dims[0]})};
  runner.run(OpKind::kAttention, {f.qkv, f.starts}, {f.a, f.lse}, c.attrs);
  return f;
}

void require_agreement(const AttentionCase& c, const OracleCase& o, DType dtype, double slack) {
  const OracleResult expected = oracle(o);
  OperationRunner runner(dtype);
  const auto [qkv, starts, a, lse] = run_forward(runner, c, o);
  const ValueId da = runner.input(o.gradient), dqkv = runner.output(o.inputs[0].dims);
  runner.run(OpKind::kAttentionDgrad, {da, qkv, a, lse, starts}, {dqkv}, c.attrs);
  // Hardware that multiplies bf16 rounds weights and their gradients to bf16. Scores, and so lse,
  // are sums in fp32 of exact products.
  const double operands =
      dtype == DType::kBF16 && isa_in_use() >= Isa::kAvx512Bf16 ? unit_roundoff(dtype) : 0.0;
  REQUIRE(relative_error(runner.read(a), expected.outputs[0]) <
          slack * tolerance(dtype) + operands);
  REQUIRE(relative_error(runner.read(lse), expected.outputs[1]) < slack * tolerance(dtype));
  // The gradient is computed from the stored a, so that a's rounding affects all input gradients.
  const double stored_a = is_narrow(dtype) ? unit_roundoff(dtype) : 0.0;
  REQUIRE(relative_error(runner.read(dqkv), expected.gradients[0]) <
          slack * tolerance(dtype) + stored_a + operands);
}

TEST_CASE("attention with grouped heads, windows and packed documents agrees with autograd") {
  for_each_dtype([](DType dtype) {
    for (const AttentionCase& c : kCases) {
      CAPTURE(dtype_name(dtype), c.attrs.query_heads, c.attrs.head_size, c.attrs.sequence_length,
              c.attrs.window, c.attrs.softcap, c.rows);
      require_agreement(c, round_to_stored(attention_oracle(c, 1.0), dtype), dtype, 1.0);
    }
  });
}

TEST_CASE("attention stays accurate when scores are far apart") {
  for_each_dtype([](DType dtype) {
    const AttentionCase c{attention_attrs(2, 1, 32, 140), 1, {0, 9}};
    CAPTURE(dtype_name(dtype));
    // For scores of several hundred, the rounding of fp32 scores themselves dominates the error.
    require_agreement(c, round_to_stored(attention_oracle(c, 30.0), dtype), dtype,
                      dtype == DType::kF64 ? 1.0 : 100.0);
  });
}

// Keys of 0 give weights exp(0) = 1, which bf16 holds exactly, before the division by their sum.
TEST_CASE("attention weights that bf16 holds exactly lose no precision when bf16 is multiplied") {
  for_each_dtype([](DType dtype) {
    for (const AttentionCase& c : kCases) {
      OracleCase o = round_to_stored(attention_oracle(c, 1.0), dtype);
      const int64_t width = o.inputs[0].dims[1], first = c.attrs.query_heads * c.attrs.head_size;
      for (size_t i = 0; i < o.inputs[0].data.size(); ++i) {
        const int64_t column = static_cast<int64_t>(i) % width - first;
        if (column >= 0 && column < c.attrs.kv_heads * c.attrs.head_size) o.inputs[0].data[i] = 0;
      }
      OperationRunner runner(dtype);
      const ForwardRun f = run_forward(runner, c, o);
      CAPTURE(dtype_name(dtype), c.attrs.query_heads, c.attrs.head_size, c.attrs.sequence_length);
      REQUIRE(relative_error(runner.read(f.a), oracle(o).outputs[0]) < tolerance(dtype));
    }
  });
}

TEST_CASE("a NaN in a key reaches the tokens that attend to it but no earlier block") {
  for_each_dtype([](DType dtype) {
    const AttentionCase c{attention_attrs(1, 1, 16, 192), 1, {0}};
    OracleCase o = attention_oracle(c, 1.0);
    o.inputs[0].data[150 * 48 + 16] = NAN;
    OperationRunner runner(dtype);
    const ForwardRun f = run_forward(runner, c, o);
    const Array out = runner.read(f.a), sums = runner.read(f.lse);
    REQUIRE(std::isfinite(sums.data[127]));
    REQUIRE(std::isfinite(out.data[127 * 16]));
    REQUIRE(std::isnan(sums.data[150]));
    REQUIRE(std::isnan(out.data[191 * 16]));
  });
}

}  // namespace
}  // namespace ftrun::testing
