#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "each_matmul_library.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

struct Case {
  int64_t tokens, hidden, vocabulary, chunk;
  std::vector<int32_t> labels;
  double softcap = 0;
};

std::vector<int32_t> labels_of(int64_t tokens, int64_t vocabulary, int64_t masked_every) {
  std::vector<int32_t> labels;
  for (int64_t n = 0; n < tokens; ++n)
    labels.push_back(masked_every > 0 && n % masked_every == 0
                         ? -100
                         : static_cast<int32_t>(n * 7919 % vocabulary));
  return labels;
}

std::vector<int32_t> mask_first(std::vector<int32_t> labels, size_t count) {
  for (size_t n = 0; n < count; ++n) labels[n] = -1;
  return labels;
}

std::vector<Case> cases() {
  return {
      {1, 1, 1, 4, {0}},
      {7, 5, 9, 3, labels_of(7, 9, 0)},
      {40, 24, 101, 16, labels_of(40, 101, 0)},                 // a ragged last chunk
      {40, 24, 101, 16, labels_of(40, 101, 3)},                 // every third token masked
      {40, 24, 101, 8, mask_first(labels_of(40, 101, 0), 17)},  // two chunks masked entirely
      {33, 64, 1000, 256, labels_of(33, 1000, 5)},              // a chunk above all tokens
      {6, 8, 20, 2, std::vector<int32_t>(6, -100)},             // all tokens masked
      {40, 24, 101, 16, labels_of(40, 101, 3), 5.0},
  };
}

OracleCase oracle_case(const Case& c, bool biased = false) {
  OracleCase o{OpKind::kLinearCrossEntropy,
               CrossEntropyAttrs{true, c.chunk, c.softcap},
               {random_array({c.tokens, c.hidden}, 1), random_array({c.vocabulary, c.hidden}, 2)},
               c.labels};
  for (double& v : o.inputs[0].data) v *= 3.0;
  if (biased) o.inputs.push_back(random_array({c.vocabulary}, 6));
  o.loss_scale = 0.125;
  return o;
}

void require_loss(const Array& actual, const Array& expected, double before_sum,
                  double before_count, double rel) {
  REQUIRE(actual.data[0] - before_sum == Approx(expected.data[0]).epsilon(rel).margin(rel));
  REQUIRE(actual.data[1] - before_count == expected.data[1]);
}

TEST_CASE("linear_cross_entropy and its gradients agree with autograd, with a bias and without") {
  for_each_library_and_dtype([](DType dtype) {
    for (const Case& c : cases())
      for (const bool biased : {false, true})
        for (const bool accumulate : {false, true}) {
          CAPTURE(dtype_name(dtype), c.tokens, c.vocabulary, c.chunk, biased, accumulate);
          const OracleCase o =
              with_rounding_of_head(round_to_stored(oracle_case(c, biased), dtype), dtype);
          const OracleResult expected = oracle(o);
          OperationRunner runner(dtype);
          runner.scalars.token_loss_factor = 0.125F;
          std::vector<Array> before;
          for (size_t i = 1; i < o.inputs.size(); ++i)
            before.push_back(rounded(random_array(o.inputs[i].dims, 8 + i), dtype));
          std::vector<ValueId> in{runner.input(o.inputs[0]), runner.input(o.inputs[1]),
                                  runner.ints(c.labels)};
          if (biased) in.push_back(runner.input(o.inputs[2]));
          const auto gradient = [&](size_t i) {
            return accumulate ? runner.input(before[i]) : runner.output(o.inputs[1 + i].dims);
          };
          // The bias's gradient comes before the matrix's.
          const auto results = [&](bool with_matrix) {
            std::vector<ValueId> out{runner.input({{2}, {10.0, 3.0}}, DType::kF64),
                                     runner.output({c.tokens, c.hidden})};
            if (biased) out.push_back(gradient(1));
            if (with_matrix) out.push_back(gradient(0));
            return out;
          };
          const std::vector<ValueId> all = results(true), frozen = results(false);
          runner.run(OpKind::kLinearCrossEntropy, in, all, o.attrs, accumulate);
          // For a frozen matrix, the other results stay the same.
          runner.run(OpKind::kLinearCrossEntropy, in, frozen, o.attrs, accumulate);
          for (size_t i = 0; i < frozen.size(); ++i)
            REQUIRE(runner.bits(frozen[i]) == runner.bits(all[i]));
          require_loss(runner.read(all[0]), expected.outputs[0], 10.0, 3.0, tolerance(dtype));
          REQUIRE(relative_error(runner.read(all[1]), expected.gradients[0]) < tolerance(dtype));
          // A 16-bit gradient is rounded once per chunk. Chunks have half the tokens because logits
          // are F32.
          const int64_t chunks = (2 * c.tokens + c.chunk - 1) / c.chunk;
          const double roundings =
              is_narrow(dtype) ? static_cast<double>(chunks) * unit_roundoff(dtype) : 0.0;
          const auto require_gradient = [&](ValueId found, size_t i) {
            const Array& made = expected.gradients[1 + i];
            const Array wanted = accumulate ? array_sum(made, before[i]) : made;
            REQUIRE(relative_error(runner.read(found), wanted) < tolerance(dtype) + roundings);
          };
          require_gradient(all.back(), 0);
          if (biased) require_gradient(all[2], 1);
        }
  });
}

/// Counts the tokens whose label is the first of their largest logits.
double correct_tokens(const OracleCase& o) {
  const Array &x = o.inputs[0], &w = o.inputs[1];
  const auto hidden = static_cast<size_t>(x.dims[1]);
  double correct = 0;
  for (size_t n = 0; n < o.ints.size(); ++n) {
    std::vector<double> logits;
    for (size_t v = 0; v < static_cast<size_t>(w.dims[0]); ++v) {
      double logit = 0;
      for (size_t i = 0; i < hidden; ++i) logit += x.data[n * hidden + i] * w.data[v * hidden + i];
      if (o.inputs.size() > 2) logit += o.inputs[2].data[v];
      logits.push_back(logit);
    }
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    correct += best == o.ints[n] ? 1 : 0;
  }
  return correct;
}

/// Makes a case whose hidden values point to one row of w each; the labels are that row for every
/// other token.
OracleCase evaluated_case(const Case& c, bool biased) {
  OracleCase o = oracle_case(c, biased);
  const auto hidden = static_cast<size_t>(c.hidden), rows = static_cast<size_t>(c.vocabulary);
  const std::vector<double>& w = o.inputs[1].data;
  for (size_t n = 0; n < c.labels.size(); ++n) {
    const size_t row = n % rows;
    double norm = 0;
    for (size_t i = 0; i < hidden; ++i) norm += w[row * hidden + i] * w[row * hidden + i];
    for (size_t i = 0; i < hidden; ++i)
      o.inputs[0].data[n * hidden + i] = 8 * w[row * hidden + i] / std::sqrt(norm);
    if (o.ints[n] >= 0 && n % 2 == 0) o.ints[n] = static_cast<int32_t>(row);
  }
  return o;
}

TEST_CASE(
    "without gradients linear_cross_entropy gives the same loss and the tokens that are "
    "predicted") {
  for_each_library_and_dtype([](DType dtype) {
    for (const Case& c : cases())
      for (const bool biased : {false, true}) {
        const OracleCase o = round_to_stored(evaluated_case(c, biased), dtype);
        OperationRunner runner(dtype);
        std::vector<ValueId> in{runner.input(o.inputs[0]), runner.input(o.inputs[1]),
                                runner.ints(o.ints)};
        if (biased) in.push_back(runner.input(o.inputs[2]));
        const ValueId loss = runner.input({{2}, {0.0, 0.0}}, DType::kF64);
        runner.run(OpKind::kLinearCrossEntropy, in, {loss},
                   CrossEntropyAttrs{false, c.chunk, c.softcap});
        const Array found = runner.read(loss);
        CAPTURE(dtype_name(dtype), c.tokens, c.vocabulary, biased);
        REQUIRE(found.data[0] == Approx(oracle(o).outputs[0].data[0])
                                     .epsilon(tolerance(dtype))
                                     .margin(tolerance(dtype)));
        REQUIRE(found.data[1] == correct_tokens(o));
      }
  });
}

/// Returns rows [first, first + count) of a matrix or vector; rows after its last one are filled
/// with `padding`.
Array row_range(const Array& whole, int64_t first, int64_t count, double padding = 0.0) {
  const int64_t last = std::min(first + count, whole.dims[0]);
  const int64_t width = whole.dims.size() > 1 ? whole.dims[1] : 1;
  std::vector<double> rows(whole.data.begin() + first * width, whole.data.begin() + last * width);
  rows.resize(static_cast<size_t>(count * width), padding);
  Dims dims = whole.dims;
  dims[0] = count;
  return {std::move(dims), std::move(rows), whole.dtype};
}

/// Parameters holds earlier gradients of the head's matrix and, if it has one, of its bias.
struct Parameters {
  Array w, bias;
};

struct SplitResult {
  Array loss, dx, dw, db;
  /// Losses as {sum, count} of each rank, which computes them from the statistics of all ranks.
  std::vector<Array> losses;
};

/// Appends a rank's part of a gradient to the parts of the ranks before it.
void append(Array& whole, const Array& part) {
  whole.data.insert(whole.data.end(), part.data.begin(), part.data.end());
  whole.dtype = part.dtype;
}

/// Computes the loss on `ranks` ranks that hold a part of the vocabulary each, in chunks of
/// `c.chunk` tokens. If `ranks` does not divide the vocabulary, the last rank has padding rows. The
/// head has a bias if `o` has a third input; a padding row's bias would make it the likeliest
/// token.
SplitResult split_cross_entropy(const Case& c, const OracleCase& o, DType dtype, int64_t ranks,
                                const Parameters* before, bool gradients = true) {
  const bool biased = o.inputs.size() > 2;
  const int64_t rows = (c.vocabulary + ranks - 1) / ranks;
  const int64_t padding = ranks * rows - c.vocabulary;
  const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  SplitResult result{{{2}, {0.0, 0.0}},
                     {{c.tokens, c.hidden}, std::vector<double>(o.inputs[0].data.size())},
                     {{c.vocabulary, c.hidden}, {}},
                     {{c.vocabulary}, {}},
                     {}};
  std::vector<OperationRunner> runners;
  std::vector<ValueId> x, w, labels, bias, loss, dx, dw, db;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    OperationRunner& runner = runners.emplace_back(dtype);
    runner.scalars.token_loss_factor = 0.125F;
    x.push_back(runner.input(o.inputs[0]));
    w.push_back(runner.input(row_range(o.inputs[1], rank * rows, rows)));
    labels.push_back(runner.ints(c.labels));
    loss.push_back(runner.input({{2}, {0.0, 0.0}}, DType::kF64));
    dx.push_back(runner.output({c.tokens, c.hidden}));
    dw.push_back(before == nullptr ? runner.output({rows, c.hidden})
                                   : runner.input(row_range(before->w, rank * rows, rows)));
    if (!biased) continue;
    bias.push_back(runner.input(row_range(o.inputs[2], rank * rows, rows, 100.0)));
    db.push_back(before == nullptr ? runner.output({rows})
                                   : runner.input(row_range(before->bias, rank * rows, rows)));
  }
  for (int64_t first = 0; first < c.tokens; first += c.chunk) {
    const int64_t count = std::min(c.chunk, c.tokens - first);
    std::vector<ValueId> logits, label_logit;
    Array gathered{{ranks * count, 2}, {}};
    const auto attrs = [&](int64_t rank) {
      return VocabularyAttrs{gradients, ranks,     rank,
                             first,     c.softcap, padding > 0 ? c.vocabulary : 0};
    };
    for (int64_t rank = 0; rank < ranks; ++rank) {
      OperationRunner& runner = runners[static_cast<size_t>(rank)];
      const auto r = static_cast<size_t>(rank);
      logits.push_back(runner.output({count, rows}, wide));
      label_logit.push_back(runner.output({count}, wide));
      const ValueId statistics = runner.output({count, 2}, wide);
      std::vector<ValueId> in{x[r], w[r], labels[r]};
      if (biased) in.push_back(bias[r]);
      runner.run(OpKind::kVocabularyLogits, in, {logits[r], statistics, label_logit[r]},
                 attrs(rank));
      const Array own = runner.read(statistics);
      gathered.data.insert(gathered.data.end(), own.data.begin(), own.data.end());
    }
    for (int64_t rank = 0; rank < ranks; ++rank) {
      OperationRunner& runner = runners[static_cast<size_t>(rank)];
      const auto r = static_cast<size_t>(rank);
      std::vector<ValueId> in{
          x[r], w[r], labels[r], logits[r], runner.input(gathered, wide), label_logit[r]},
          out{loss[r]};
      if (gradients) out = {loss[r], dx[r], dw[r]};
      if (gradients && biased) out.push_back(db[r]);
      if (first > 0) in.insert(in.end(), out.begin(), out.end());
      if (gradients) out.push_back(logits[r]);
      runner.run(OpKind::kVocabularyCrossEntropy, in, out, attrs(rank), before != nullptr);
    }
  }
  for (size_t r = 0; r < runners.size(); ++r) {
    result.losses.push_back(runners[r].read(loss[r]));
    for (size_t i = 0; i < 2; ++i) result.loss.data[i] += result.losses[r].data[i];
    if (!gradients) continue;
    const Array own_dx = runners[r].read(dx[r]);
    for (size_t i = 0; i < own_dx.data.size(); ++i) result.dx.data[i] += own_dx.data[i];
    result.dx.dtype = own_dx.dtype;
    append(result.dw, runners[r].read(dw[r]));
    if (biased) append(result.db, runners[r].read(db[r]));
  }
  // Padding rows have no gradient.
  for (int64_t i = 0; gradients && i < padding * c.hidden; ++i, result.dw.data.pop_back())
    REQUIRE(result.dw.data.back() == 0.0);
  for (int64_t i = 0; gradients && biased && i < padding; ++i, result.db.data.pop_back())
    REQUIRE(result.db.data.back() == 0.0);
  return result;
}

std::vector<Case> split_cases() {
  return {
      {7, 5, 12, 3, labels_of(7, 12, 0)},
      {40, 24, 120, 16, labels_of(40, 120, 3)},  // every third token masked, a ragged last chunk
      {40, 24, 120, 8,
       mask_first(labels_of(40, 120, 0), 17)},       // the first chunks have masked tokens only
      {33, 64, 996, 256, labels_of(33, 996, 5)},     // a chunk size above the number of tokens
      {6, 8, 24, 2, std::vector<int32_t>(6, -100)},  // all tokens masked
      {40, 24, 120, 16, labels_of(40, 120, 3), 5.0},
      {40, 24, 119, 16, labels_of(40, 119, 3), 5.0},  // padding rows on two ranks and on three
      {17, 24, 31, 8, labels_of(17, 31, 0)},
      {9, 8, 24, 4, {23, 0, 5, 6, 7, 11, 12, 17, 18}},  // labels next to the borders between ranks
  };
}

void require_split_gradients(const Case& c, DType dtype, int64_t ranks, bool biased) {
  for (const bool accumulate : {false, true}) {
    CAPTURE(dtype_name(dtype), c.tokens, c.vocabulary, c.chunk, ranks, biased, accumulate);
    const OracleCase o =
        with_rounding_of_head(round_to_stored(oracle_case(c, biased), dtype), dtype);
    const OracleResult expected = oracle(o);
    const Parameters before{rounded(random_array({c.vocabulary, c.hidden}, 9), dtype),
                            rounded(random_array({c.vocabulary}, 10), dtype)};
    const SplitResult found =
        split_cross_entropy(c, o, dtype, ranks, accumulate ? &before : nullptr);
    require_loss(found.loss, expected.outputs[0], 0.0, 0.0, tolerance(dtype));
    // Each rank rounds its share of dx.
    const double shares =
        is_narrow(dtype) ? static_cast<double>(ranks) * unit_roundoff(dtype) : 0.0;
    REQUIRE(relative_error(found.dx, expected.gradients[0]) < tolerance(dtype) + shares);
    const int64_t chunks = (c.tokens + c.chunk - 1) / c.chunk;
    const double roundings =
        is_narrow(dtype) ? static_cast<double>(chunks) * unit_roundoff(dtype) : 0.0;
    const auto require_gradient = [&](const Array& actual, size_t i, const Array& more) {
      const Array& made = expected.gradients[i];
      REQUIRE(relative_error(actual, accumulate ? array_sum(made, more) : made) <
              tolerance(dtype) + roundings);
    };
    require_gradient(found.dw, 1, before.w);
    if (biased) require_gradient(found.db, 2, before.bias);
    const SplitResult evaluated = split_cross_entropy(c, o, dtype, ranks, nullptr, false);
    REQUIRE(evaluated.loss.data[0] ==
            Approx(expected.outputs[0].data[0]).epsilon(tolerance(dtype)).margin(tolerance(dtype)));
  }
}

TEST_CASE(
    "the loss of a vocabulary that is split over ranks and its gradients agree with autograd") {
  for_each_library_and_dtype([](DType dtype) {
    for (const Case& c : split_cases())
      for (const int64_t ranks : {2, 3})
        for (const bool biased : {false, true}) require_split_gradients(c, dtype, ranks, biased);
  });
}

TEST_CASE("each rank counts the tokens whose label is one of its own rows") {
  const Case c = split_cases().back();
  const SplitResult found = split_cross_entropy(c, oracle_case(c), DType::kF32, 3, nullptr);
  REQUIRE(found.losses[0].data[1] == 4.0);
  REQUIRE(found.losses[1].data[1] == 2.0);
  REQUIRE(found.losses[2].data[1] == 3.0);
}

TEST_CASE("masked tokens get gradients of exactly 0") {
  const Case c = cases()[3];
  const OracleCase o = oracle_case(c);
  OperationRunner runner(DType::kF32);
  const ValueId x = runner.input(o.inputs[0]), w = runner.input(o.inputs[1]),
                labels = runner.ints(c.labels);
  const ValueId loss = runner.input({{2}, {0.0, 0.0}}, DType::kF64);
  const ValueId dx = runner.output({c.tokens, c.hidden}),
                dw = runner.output({c.vocabulary, c.hidden});
  runner.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss, dx, dw}, o.attrs);
  const Array out = runner.read(dx);
  for (size_t n = 0; n < c.labels.size(); ++n)
    for (size_t i = 0; i < 24; ++i) REQUIRE((out.data[n * 24 + i] == 0.0) == (c.labels[n] < 0));
}

TEST_CASE("logits far apart neither overflow nor lose the loss, and NaN is passed on") {
  for_each_library_and_dtype([](DType dtype) {
    OperationRunner runner(dtype);
    // Logits are 0, 500 and -500; the losses are 0 and 1000.
    const ValueId x = runner.input({{2, 1}, {1.0, 1.0}}),
                  w = runner.input({{3, 1}, {0.0, 500.0, -500.0}});
    const ValueId labels = runner.ints({1, 2}), loss = runner.input({{2}, {0.0, 0.0}}, DType::kF64);
    runner.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss}, CrossEntropyAttrs{false, 8});
    REQUIRE(runner.read(loss).data[0] == 1000.0);

    const ValueId bad = runner.input({{2, 1}, {1.0, NAN}});
    runner.run(OpKind::kLinearCrossEntropy, {bad, w, labels}, {loss}, CrossEntropyAttrs{false, 8});
    REQUIRE(std::isnan(runner.read(loss).data[0]));
  });
}

TEST_CASE(
    "logits of a split vocabulary far apart neither overflow nor lose the loss, and NaN is passed "
    "on") {
  for_each_library_and_dtype([](DType dtype) {
    // Logits are 0 and 500 on one rank, -500 and 1 on the other.
    const Case c{2, 1, 4, 1, {1, 2}};
    OracleCase o{OpKind::kLinearCrossEntropy,
                 CrossEntropyAttrs{},
                 {{{2, 1}, {1.0, 1.0}}, {{4, 1}, {0.0, 500.0, -500.0, 1.0}}},
                 c.labels};
    REQUIRE(split_cross_entropy(c, o, dtype, 2, nullptr).loss.data[0] == 1000.0);
    o.inputs[0].data[1] = NAN;
    REQUIRE(std::isnan(split_cross_entropy(c, o, dtype, 2, nullptr).loss.data[0]));
  });
}

TEST_CASE("several ranks count as many correct predictions as one rank does") {
  for_each_library_and_dtype([](DType dtype) {
    for (Case c : split_cases())
      for (const int64_t ranks : {2, 3, 4}) {
        const OracleCase o = round_to_stored(evaluated_case(c, ranks % 2 == 1), dtype);
        c.labels = o.ints;
        CAPTURE(dtype_name(dtype), c.tokens, c.vocabulary, ranks);
        const SplitResult found = split_cross_entropy(c, o, dtype, ranks, nullptr, false);
        REQUIRE(found.loss.data[0] == Approx(oracle(o).outputs[0].data[0])
                                          .epsilon(tolerance(dtype))
                                          .margin(tolerance(dtype)));
        REQUIRE(found.loss.data[1] == correct_tokens(o));
      }
  });
}

TEST_CASE(
    "a token whose loss is not finite never counts as predicted, whatever the sign of a NaN") {
  for_each_library_and_dtype([](DType dtype) {
    // Token 0 is predicted. The hidden value of token 1 is NaN, or makes an infinite logit at its
    // label.
    const Case c{2, 1, 4, 8, {1, 1}};
    for (const double value :
         {std::copysign(NAN, 1.0), std::copysign(NAN, -1.0), HUGE_VAL, -HUGE_VAL})
      for (const int64_t ranks : {1, 2, 4}) {
        CAPTURE(dtype_name(dtype), value, ranks);
        const OracleCase o{OpKind::kLinearCrossEntropy,
                           CrossEntropyAttrs{},
                           {{{2, 1}, {1.0, value}}, {{4, 1}, {0.5, 2.0, -1.0, 1.0}}},
                           c.labels};
        Array found;
        if (ranks == 1) {
          OperationRunner runner(dtype);
          const ValueId x = runner.input(o.inputs[0]), w = runner.input(o.inputs[1]),
                        labels = runner.ints(o.ints);
          const ValueId loss = runner.input({{2}, {0.0, 0.0}}, DType::kF64);
          runner.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss},
                     CrossEntropyAttrs{false, c.chunk});
          found = runner.read(loss);
        } else {
          found = split_cross_entropy(c, o, dtype, ranks, nullptr, false).loss;
        }
        REQUIRE(std::isnan(found.data[0]));
        REQUIRE(found.data[1] == 1.0);
      }
  });
}

TEST_CASE("the first of equal logits is the prediction") {
  const Case c{3, 1, 4, 8, {1, 2, 3}};
  OracleCase o = oracle_case(c);
  o.inputs[0].data = {1, 1, 1};
  o.inputs[1].data = {1, 3, 3, 2};
  REQUIRE(split_cross_entropy(c, o, DType::kF32, 2, nullptr, false).losses[0].data[1] == 1);
  REQUIRE(split_cross_entropy(c, o, DType::kF32, 2, nullptr, false).losses[1].data[1] == 0);
  OperationRunner runner(DType::kF32);
  const ValueId x = runner.input(o.inputs[0]), w = runner.input(o.inputs[1]),
                labels = runner.ints(c.labels);
  const ValueId loss = runner.input({{2}, {0.0, 0.0}}, DType::kF64);
  runner.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss},
             CrossEntropyAttrs{false, c.chunk});
  REQUIRE(runner.read(loss).data[1] == 1);
}

TEST_CASE(
    "a label outside a split vocabulary is caught by every rank, but not one of another rank's "
    "rows") {
  for (const int64_t rank : {0, 1}) {
    OperationRunner runner(DType::kF32);
    const ValueId x = runner.input(random_array({2, 4}, 1)),
                  w = runner.input(random_array({5, 4}, 2));
    const auto run = [&](const std::vector<int32_t>& labels) {
      runner.run(OpKind::kVocabularyLogits, {x, w, runner.ints(labels)},
                 {runner.output({2, 5}), runner.output({2, 2}), runner.output({2})},
                 VocabularyAttrs{false, 2, rank, 0});
    };
    run({0, 9});
    REQUIRE_THROWS_WITH(
        run({0, 10}),
        Catch::Contains("label 10 at position 1 of a micro-batch is outside the vocabulary of 10"));
  }
}

TEST_CASE("a label outside the vocabulary is caught before memory is touched") {
  OperationRunner runner(DType::kF32);
  const ValueId x = runner.input(random_array({2, 4}, 1)),
                w = runner.input(random_array({5, 4}, 2));
  const ValueId labels = runner.ints({0, 5}), loss = runner.input({{2}, {0.0, 0.0}}, DType::kF64);
  try {
    runner.run(OpKind::kLinearCrossEntropy, {x, w, labels}, {loss}, CrossEntropyAttrs{false, 8});
    FAIL("no error");
  } catch (const Error& e) {
    REQUIRE(e.code() == ExitCode::kBug);
    REQUIRE_THAT(
        e.message(),
        Catch::Contains("label 5 at position 1 of a micro-batch is outside the vocabulary of 5"));
  }
}

}  // namespace
}  // namespace ftrun::testing
