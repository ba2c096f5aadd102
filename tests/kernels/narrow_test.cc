// These tests check the properties of 16-bit storage that comparing each operation with autograd
// does not check: arithmetic in fp32, a single rounding, and gradients in another dtype than the
// activations.
#include <cmath>
#include <functional>

#include "each_matmul_library.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/heads.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

const std::vector<DType> kNarrow{DType::kBF16, DType::kF16};
const std::vector<DType> kWorking{DType::kF32, DType::kBF16, DType::kF16};

Array filled_array(std::vector<int64_t> dims, double v) {
  Array array{std::move(dims), {}};
  array.data.assign(static_cast<size_t>(element_count(array.dims)), v);
  return array;
}

void require_all(const Array& array, double v) {
  for (const double x : array.data) REQUIRE(x == v);
}

// The sum has 4096 ones: a sum in bf16 would stop at 256, one in fp16 at 2048.
TEST_CASE("sums over 4096 inputs or tokens are made in fp32 and rounded once") {
  constexpr int64_t kMany = 4096, kWidth = 3;
  for (const DType dtype : kNarrow) {
    CAPTURE(dtype_name(dtype));
    OperationRunner runner(dtype);
    const ValueId row = runner.input(filled_array({2, kMany}, 1.0)),
                  w = runner.input(filled_array({kWidth, kMany}, 1.0));
    const ValueId y = runner.output({2, kWidth}), dx = runner.output({2, kWidth});
    runner.run(OpKind::kLinear, {row, w}, {y});
    require_all(runner.read(y), 4096.0);
    const ValueId wt = runner.input(filled_array({kMany, kWidth}, 1.0));
    runner.run(OpKind::kLinearDgrad, {row, wt}, {dx});
    require_all(runner.read(dx), 4096.0);

    const ValueId tall = runner.input(filled_array({kMany, kWidth}, 1.0)),
                  ones = runner.input(filled_array({kMany}, 1.0), DType::kF32);
    const ValueId tokens = runner.ints(std::vector<int32_t>(kMany, 1));
    // The sum of 4096 + 32 is exact in 16 bits. The gradients hold 32 before the sum is added.
    for (const bool accumulate : {false, true}) {
      const double expected = accumulate ? 4128.0 : 4096.0;
      const ValueId dw = runner.input(filled_array({kWidth, kWidth}, 32.0)),
                    db = runner.input(filled_array({kWidth}, 32.0)),
                    dn = runner.input(filled_array({kWidth}, 32.0)),
                    dt = runner.input(filled_array({2, kWidth}, 32.0));
      runner.run(OpKind::kLinearWgrad, {tall, tall}, {dw}, NoAttrs{}, accumulate);
      runner.run(OpKind::kBiasWgrad, {tall}, {db}, NoAttrs{}, accumulate);
      runner.run(OpKind::kRmsNormWgrad, {tall, tall, ones}, {dn}, NoAttrs{}, accumulate);
      runner.run(OpKind::kEmbedWgrad, {tokens, tall}, {dt}, NoAttrs{}, accumulate);
      require_all(runner.read(dw), expected);
      require_all(runner.read(db), expected);
      require_all(runner.read(dn), expected);
      const Array rows = runner.read(dt);
      for (size_t i = 0; i < rows.data.size(); ++i)
        REQUIRE(rows.data[i] == (i >= 3 ? expected : accumulate ? 32.0 : 0.0));
    }
  }
}

TEST_CASE("matrix multiplications larger than their panels agree with autograd, also with a bias",
          "[matmul]") {
  constexpr int64_t kTokens = 520, kOutputs = 1030, kInputs = 2060;
  for (const DType dtype : kNarrow)
    for (const DType gradient : {dtype, DType::kF32}) {
      CAPTURE(dtype_name(dtype), dtype_name(gradient));
      const OracleCase c =
          round_to_stored({OpKind::kLinear,
                           NoAttrs{},
                           {random_array({kTokens, kInputs}, 1),
                            random_array({kOutputs, kInputs}, 2), random_array({kOutputs}, 3)},
                           {},
                           random_array({kTokens, kOutputs}, 4)},
                          dtype);
      const OracleResult expected = oracle(c);
      const Array before = rounded(random_array({kOutputs, kInputs}, 5), gradient);
      OperationRunner runner(dtype);
      const ValueId x = runner.input(c.inputs[0]), w = runner.input(c.inputs[1]),
                    b = runner.input(c.inputs[2]), dy = runner.input(c.gradient);
      const ValueId y = runner.output({kTokens, kOutputs}), dx = runner.output({kTokens, kInputs}),
                    dw = runner.input(before, gradient);
      runner.run(OpKind::kLinear, {x, w, b}, {y});
      runner.run(OpKind::kLinearDgrad, {dy, w}, {dx});
      runner.run(OpKind::kLinearWgrad, {dy, x}, {dw}, NoAttrs{}, true);
      REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) < tolerance(dtype));
      REQUIRE(relative_error(runner.read(dw), array_sum(before, expected.gradients[1])) <
              tolerance(dtype));
    }
}

// --- gradients in another dtype than the activations ---------------------------------------------

/// TwoRunGradients holds the weight gradients of two runs of an operation: overwritten by the
/// first, added to by the second.
struct TwoRunGradients {
  std::vector<Array> first;
  std::vector<Array> second;
};
using Run = std::function<void(OperationRunner& runner, const std::vector<ValueId>& gradients,
                               bool accumulate)>;

TwoRunGradients gradients_in(OperationRunner& runner, DType gradient,
                             const std::vector<std::vector<int64_t>>& dims, const Run& run) {
  std::vector<ValueId> ids;
  for (const auto& d : dims) ids.push_back(runner.output(d, gradient));
  TwoRunGradients written;
  run(runner, ids, false);
  for (const ValueId id : ids) written.first.push_back(runner.read(id));
  run(runner, ids, true);
  for (const ValueId id : ids) written.second.push_back(runner.read(id));
  return written;
}

/// Requires that gradients of dtype `gradient` equal fp32 gradients, rounded once in each run.
void require_rounded(DType dtype, DType gradient, const std::vector<std::vector<int64_t>>& dims,
                     const Run& run) {
  CAPTURE(dtype_name(dtype), dtype_name(gradient));
  OperationRunner runner(dtype);
  runner.scalars.token_loss_factor = 0.125F;
  const TwoRunGradients wide = gradients_in(runner, DType::kF32, dims, run);
  const TwoRunGradients actual = gradients_in(runner, gradient, dims, run);
  for (size_t i = 0; i < dims.size(); ++i) {
    REQUIRE(relative_error(actual.first[i], wide.first[i]) < 1e-6);
    REQUIRE(relative_error(actual.second[i], array_sum(actual.first[i], wide.first[i])) < 1e-6);
  }
}

void for_each_pair(const std::function<void(DType, DType)>& body) {
  for (const DType dtype : kWorking)
    for (const DType gradient : kWorking) body(dtype, gradient);
}

TEST_CASE("gradients of parameters have their own dtype, whatever the activations have") {
  for_each_pair([](DType dtype, DType gradient) {
    require_rounded(
        dtype, gradient, {{33, 17}}, [](OperationRunner& runner, const auto& dw, bool accumulate) {
          runner.run(
              OpKind::kLinearWgrad,
              {runner.input(random_array({65, 33}, 1)), runner.input(random_array({65, 17}, 2))},
              dw, NoAttrs{}, accumulate);
        });
    require_rounded(dtype, gradient, {{33}},
                    [](OperationRunner& runner, const auto& db, bool accumulate) {
                      runner.run(OpKind::kBiasWgrad, {runner.input(random_array({130, 33}, 1))}, db,
                                 NoAttrs{}, accumulate);
                    });
    require_rounded(
        dtype, gradient, {{33}}, [](OperationRunner& runner, const auto& dw, bool accumulate) {
          runner.run(
              OpKind::kRmsNormWgrad,
              {runner.input(random_array({130, 33}, 1)), runner.input(random_array({130, 33}, 2)),
               runner.input(random_array({130}, 3), DType::kF32)},
              dw, NoAttrs{}, accumulate);
        });
    require_rounded(dtype, gradient, {{10}, {10}},
                    [](OperationRunner& runner, const auto& dw, bool accumulate) {
                      runner.run(OpKind::kQkNormWgrad,
                                 {runner.input(random_array({70, 50}, 1)),
                                  runner.input(random_array({70, 50}, 2)),
                                  runner.input(random_array({70, 4}, 3), DType::kF32)},
                                 dw, HeadAttrs{3, 1, 10, 1e-6}, accumulate);
                    });
    require_rounded(
        dtype, gradient, {{11, 70}},
        [](OperationRunner& runner, const auto& dtable, bool accumulate) {
          runner.run(OpKind::kEmbedWgrad,
                     {runner.ints({3, 0, 10, 3, 3, 7}), runner.input(random_array({6, 70}, 1))},
                     dtable, NoAttrs{}, accumulate);
        });
    // The head has a single chunk, because half of all tokens count. With more chunks a 16-bit
    // gradient would be rounded once per chunk.
    require_rounded(
        dtype, gradient, {{101, 24}}, [](OperationRunner& runner, const auto& dw, bool accumulate) {
          runner.run(OpKind::kLinearCrossEntropy,
                     {runner.input(random_array({4, 24}, 1)),
                      runner.input(random_array({101, 24}, 2)), runner.ints({5, -1, 100, -1})},
                     {runner.input({{2}, {0.0, 0.0}}, DType::kF64), runner.output({4, 24}), dw[0]},
                     CrossEntropyAttrs{true, 8}, accumulate);
        });
  });
}

TEST_CASE("the head's weights and their gradient go through panels smaller than the vocabulary") {
  // Panels hold 2^20 elements: 4096 of the 5000 rows.
  const OracleCase c = round_to_stored({OpKind::kLinearCrossEntropy,
                                        CrossEntropyAttrs{true, 16},
                                        {random_array({5, 256}, 1), random_array({5000, 256}, 2)},
                                        {4999, -1, -1, 4096, -1}},
                                       DType::kBF16);
  const OracleResult expected = oracle(with_rounding_of_head(c, DType::kBF16));
  OperationRunner runner(DType::kBF16);
  const ValueId x = runner.input(c.inputs[0]), w = runner.input(c.inputs[1]),
                labels = runner.ints(c.ints), loss = runner.input({{2}, {0.0, 0.0}}, DType::kF64),
                dx = runner.output({5, 256}), dw = runner.output({5000, 256});
  runner.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss, dx, dw}, c.attrs);
  REQUIRE(runner.read(loss).data[0] == Approx(expected.outputs[0].data[0]).epsilon(1e-5));
  REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) < 1e-5);
  REQUIRE(relative_error(runner.read(dw), expected.gradients[1]) < 1e-5);
}

TEST_CASE("without gradients the head's workspace is large enough, also for 16-bit operands") {
  for (const DType dtype : kNarrow) {
    const OracleCase c = round_to_stored({OpKind::kLinearCrossEntropy,
                                          CrossEntropyAttrs{true, 1},
                                          {random_array({5, 8}, 1), random_array({30, 8}, 2)},
                                          {4, 7, -1, 29, 0}},
                                         dtype);
    OperationRunner runner(dtype);
    const ValueId x = runner.input(c.inputs[0]), w = runner.input(c.inputs[1]),
                  labels = runner.ints(c.ints), loss = runner.input({{2}, {0.0, 0.0}}, DType::kF64);
    runner.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss}, CrossEntropyAttrs{false, 1});
    REQUIRE(runner.read(loss).data[0] == Approx(oracle(c).outputs[0].data[0]).epsilon(1e-5));
  }
}

TEST_CASE("fp16 overflows to infinity, which the sum of squares of the gradients shows") {
  OperationRunner runner(DType::kF16);
  const ValueId dy = runner.input(filled_array({64, 1}, 60000.0)), db = runner.output({1});
  runner.run(OpKind::kBiasWgrad, {dy}, {db});
  REQUIRE(std::isinf(runner.read(db).data[0]));
  REQUIRE_FALSE(std::isfinite(sum_of_squares(runner.bits(db).data(), DType::kF16, 1)));
}

}  // namespace
}  // namespace ftrun::testing
