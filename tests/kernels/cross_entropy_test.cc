#include <cmath>

#include "base/error.h"
#include "products_rig.h"

#include <catch2/catch.hpp>

namespace ftrun::test {
namespace {

struct Case {
  int64_t tokens, hidden, vocabulary, chunk;
  std::vector<int32_t> labels;
};

std::vector<int32_t> labels_of(int64_t tokens, int64_t vocabulary, int64_t masked_every) {
  std::vector<int32_t> labels;
  for (int64_t n = 0; n < tokens; ++n)
    labels.push_back(masked_every > 0 && n % masked_every == 0
                         ? -100
                         : static_cast<int32_t>(n * 7919 % vocabulary));
  return labels;
}

std::vector<int32_t> first_masked(std::vector<int32_t> labels, size_t count) {
  for (size_t n = 0; n < count; ++n) labels[n] = -1;
  return labels;
}

std::vector<Case> cases() {
  return {
      {1, 1, 1, 4, {0}},
      {7, 5, 9, 3, labels_of(7, 9, 0)},
      {40, 24, 101, 16, labels_of(40, 101, 0)},                   // a ragged last chunk
      {40, 24, 101, 16, labels_of(40, 101, 3)},                   // gathered chunks
      {40, 24, 101, 8, first_masked(labels_of(40, 101, 0), 17)},  // whole chunks masked
      {33, 64, 1000, 256, labels_of(33, 1000, 5)},                // one chunk larger than all
      {6, 8, 20, 2, std::vector<int32_t>(6, -100)},               // nothing counts
  };
}

OracleCase oracle_case(const Case& c) {
  OracleCase o{OpKind::kLinearCrossEntropy,
               CrossEntropyAttrs{true, c.chunk},
               {random_array({c.tokens, c.hidden}, 1), random_array({c.vocabulary, c.hidden}, 2)},
               c.labels};
  for (double& v : o.inputs[0].data) v *= 3.0;
  o.loss_scale = 0.125;
  return o;
}

void require_loss(const Array& actual, const Array& expected, double before_sum,
                  double before_count, double rel) {
  REQUIRE(actual.data[0] - before_sum == Approx(expected.data[0]).epsilon(rel).margin(rel));
  REQUIRE(actual.data[1] - before_count == expected.data[1]);
}

TEST_CASE("linear_cross_entropy and both gradients agree with autograd") {
  for_each_multiplier([](DType dtype) {
    for (const Case& c : cases())
      for (const bool accumulate : {false, true}) {
        CAPTURE(dtype_name(dtype), c.tokens, c.vocabulary, c.chunk, accumulate);
        const OracleCase o = stored(oracle_case(c), dtype);
        const OracleResult expected = oracle(o);
        Rig rig(dtype);
        rig.scalars.loss_scale = 0.125F;
        const Array before = rounded(random_array({c.vocabulary, c.hidden}, 9), dtype);
        const ValueId x = rig.input(o.inputs[0]), w = rig.input(o.inputs[1]),
                      labels = rig.ints(c.labels);
        const ValueId loss = rig.input({{2}, {10.0, 3.0}}, DType::kF64);
        const ValueId dx = rig.output({c.tokens, c.hidden});
        const ValueId dw = accumulate ? rig.input(before) : rig.output({c.vocabulary, c.hidden});
        rig.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss, dx, dw}, o.attrs, accumulate);
        Array dw_expected = expected.gradients[1];
        if (accumulate)
          for (size_t i = 0; i < before.data.size(); ++i) dw_expected.data[i] += before.data[i];
        require_loss(rig.read(loss), expected.outputs[0], 10.0, 3.0, tolerance(dtype));
        REQUIRE(relative_error(rig.read(dx), expected.gradients[0]) < tolerance(dtype));
        // A 16-bit dw is rounded once a chunk, of half the tokens because logits are F32.
        const int64_t chunks = (2 * c.tokens + c.chunk - 1) / c.chunk;
        const double roundings =
            is_narrow(dtype) ? static_cast<double>(chunks) * unit_roundoff(dtype) : 0.0;
        REQUIRE(relative_error(rig.read(dw), dw_expected) < tolerance(dtype) + roundings);
      }
  });
}

TEST_CASE("without gradients linear_cross_entropy gives the same loss") {
  for_each_multiplier([](DType dtype) {
    for (const Case& c : cases()) {
      const OracleCase o = stored(oracle_case(c), dtype);
      Rig rig(dtype);
      const ValueId x = rig.input(o.inputs[0]), w = rig.input(o.inputs[1]),
                    labels = rig.ints(c.labels);
      const ValueId loss = rig.input({{2}, {0.0, 0.0}}, DType::kF64);
      rig.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss},
              CrossEntropyAttrs{false, c.chunk});
      require_loss(rig.read(loss), oracle(o).outputs[0], 0.0, 0.0, tolerance(dtype));
    }
  });
}

TEST_CASE("masked tokens get gradients of exactly 0") {
  const Case c = cases()[3];
  const OracleCase o = oracle_case(c);
  Rig rig(DType::kF32);
  const ValueId x = rig.input(o.inputs[0]), w = rig.input(o.inputs[1]), labels = rig.ints(c.labels);
  const ValueId loss = rig.input({{2}, {0.0, 0.0}}, DType::kF64);
  const ValueId dx = rig.output({c.tokens, c.hidden}), dw = rig.output({c.vocabulary, c.hidden});
  rig.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss, dx, dw}, o.attrs);
  const Array out = rig.read(dx);
  for (size_t n = 0; n < c.labels.size(); ++n)
    for (size_t i = 0; i < 24; ++i) REQUIRE((out.data[n * 24 + i] == 0.0) == (c.labels[n] < 0));
}

TEST_CASE("logits far apart neither overflow nor lose the loss, and NaN is passed on") {
  for_each_multiplier([](DType dtype) {
    Rig rig(dtype);
    // Logits 0, 500, -500: losses 0 and 1000.
    const ValueId x = rig.input({{2, 1}, {1.0, 1.0}}),
                  w = rig.input({{3, 1}, {0.0, 500.0, -500.0}});
    const ValueId labels = rig.ints({1, 2}), loss = rig.input({{2}, {0.0, 0.0}}, DType::kF64);
    rig.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss}, CrossEntropyAttrs{false, 8});
    REQUIRE(rig.read(loss).data[0] == 1000.0);

    const ValueId bad = rig.input({{2, 1}, {1.0, NAN}});
    rig.run(OpKind::kLinearCrossEntropy, {bad, w, labels}, {loss}, CrossEntropyAttrs{false, 8});
    REQUIRE(std::isnan(rig.read(loss).data[0]));
  });
}

TEST_CASE("a label outside the vocabulary is caught before memory is touched") {
  Rig rig(DType::kF32);
  const ValueId x = rig.input(random_array({2, 4}, 1)), w = rig.input(random_array({5, 4}, 2));
  const ValueId labels = rig.ints({0, 5}), loss = rig.input({{2}, {0.0, 0.0}}, DType::kF64);
  try {
    rig.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss}, CrossEntropyAttrs{false, 8});
    FAIL("no error");
  } catch (const Error& e) {
    REQUIRE(e.code() == ExitCode::kBug);
    REQUIRE_THAT(
        e.message(),
        Catch::Contains("label 5 at position 1 of a micro-batch is outside the vocabulary of 5"));
  }
}

}  // namespace
}  // namespace ftrun::test
