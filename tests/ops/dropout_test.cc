#include "ops/dropout/dropout.h"
#include "kernels/dropout_mask.h"
#include "ops/kinds.h"

#include <cmath>
#include <functional>

#include "operation_runner.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

/// MaskPosition says where in training a mask's rows lie.
struct MaskPosition {
  uint64_t key = dropout_key(5, 1);
  int64_t layer = 3;
  int64_t first_token = 0;
  DropoutAttrs attrs{0.3, 1, 0};
};

/// Computes the mask's factors one element at a time.
Array mask_of(const MaskPosition& position, int64_t tokens, int64_t width) {
  Array mask{{tokens, width}, {}};
  for (int64_t n = 0; n < tokens; ++n) {
    const uint64_t row_key = dropout_row_key(position.key, position.layer, position.attrs.site,
                                             position.first_token + n);
    for (int64_t i = 0; i < width; ++i) {
      const int64_t column = position.attrs.first_column + i;
      const uint32_t bits =
          dropout_bits(dropout_keys(row_key, column), static_cast<uint32_t>(column));
      mask.data.push_back(bits < least_kept_bits(position.attrs) ? 0
                                                                 : dropout_scale(position.attrs));
    }
  }
  return mask;
}

/// Returns the mask that the kernel computes.
Array kernel_mask(const MaskPosition& position, int64_t tokens, int64_t width) {
  OperationRunner runner(DType::kF32);
  runner.scalars.dropout_key = position.key;
  runner.layer = position.layer;
  runner.first_token = position.first_token;
  const ValueId x = runner.input(
      {{tokens, width}, std::vector<double>(static_cast<size_t>(tokens * width), 1.0)});
  const ValueId y = runner.output({tokens, width});
  runner.run(OpKind::kDropout, {x}, {y}, position.attrs);
  return runner.read(y);
}

double dropped_share(const Array& mask) {
  return static_cast<double>(std::count(mask.data.begin(), mask.data.end(), 0.0)) /
         static_cast<double>(mask.data.size());
}

/// Returns how many standard deviations a share of `draws` draws is away from its probability.
double count_deviations(double share, double probability, double draws) {
  return std::abs(share - probability) / std::sqrt(probability * (1 - probability) / draws);
}

TEST_CASE("a token has the same mask in a padded row as in an unpadded one") {
  constexpr int64_t kRows = 4, kTokens = 5, kPadding = 3, kWidth = 70;
  const Array plain = kernel_mask({.first_token = 40}, kRows * kTokens, kWidth);
  const Array padded = kernel_mask({.first_token = 40,
                                    .attrs = {.probability = 0.3,
                                              .site = 1,
                                              .sequence_length = kTokens + kPadding,
                                              .sequence_padding = kPadding}},
                                   kRows * (kTokens + kPadding), kWidth);
  for (int64_t row = 0; row < kRows; ++row) {
    const auto begin = [&](const Array& of, int64_t tokens) {
      return of.data.begin() + row * tokens * kWidth;
    };
    const auto first = begin(plain, kTokens);
    REQUIRE(std::equal(first, first + kTokens * kWidth, begin(padded, kTokens + kPadding)));
  }
}

TEST_CASE("dropout and its gradient agree with autograd under the same mask, also in place") {
  for_each_dtype([](DType dtype) {
    for (const int64_t width : {1, 13, 64, 100})
      for (const int64_t first_column : {0, 7, 48, 4090}) {
        CAPTURE(dtype_name(dtype), width, first_column);
        const MaskPosition position{.first_token = 1000, .attrs = {0.3, 2, first_column}};
        const OracleCase c = round_to_stored({OpKind::kDropout,
                                              position.attrs,
                                              {random_array({9, width}, 1)},
                                              {},
                                              random_array({9, width}, 2)},
                                             dtype);
        OracleCase masked = c;
        masked.inputs.push_back(mask_of(position, 9, width));
        const OracleResult expected = oracle(masked);
        OperationRunner runner(dtype);
        runner.scalars.dropout_key = position.key;
        runner.layer = position.layer;
        runner.first_token = position.first_token;
        const ValueId x = runner.input(c.inputs[0]), dy = runner.input(c.gradient),
                      y = runner.output({9, width}), dx = runner.output({9, width});
        runner.run(OpKind::kDropout, {x}, {y}, position.attrs);
        runner.run(OpKind::kDropout, {dy}, {dx}, position.attrs);
        REQUIRE(relative_error(runner.read(y), expected.outputs[0]) < tolerance(dtype));
        REQUIRE(relative_error(runner.read(dx), expected.gradients[0]) < tolerance(dtype));
        runner.run(OpKind::kDropout, {x}, {x}, position.attrs);
        REQUIRE(runner.bits(x) == runner.bits(y));
      }
  });
}

TEST_CASE(
    "dropout drops the requested share, and its results have the expected mean and variance") {
  for (const double p : {0.01, 0.1, 0.5, 0.93}) {
    CAPTURE(p);
    const Array mask = kernel_mask({.attrs = {p, 0, 0}}, 1000, 1001);
    const auto draws = static_cast<double>(mask.data.size());
    REQUIRE(count_deviations(dropped_share(mask), p, draws) < 4);
    double sum = 0, squares = 0;
    for (const double v : mask.data) {
      REQUIRE((v == 0 || v == static_cast<double>(static_cast<float>(1 / (1 - p)))));
      sum += v;
      squares += v * v;
    }
    // Dropout of 1s has mean 1 and variance p / (1 - p).
    const double mean = sum / draws, variance = squares / draws - mean * mean;
    REQUIRE(std::abs(mean - 1) < 4 * std::sqrt(p / (1 - p) / draws));
    REQUIRE(std::abs(variance / (p / (1 - p)) - 1) < 0.05);
  }
}

TEST_CASE("a mask is the same however tokens and columns are split") {
  const Array whole = kernel_mask({.first_token = 40}, 30, 150);
  for (const int64_t token : {0, 1, 17})
    for (const int64_t column : {0, 3, 64, 99}) {
      CAPTURE(token, column);
      const Array part = kernel_mask({.first_token = 40 + token, .attrs = {0.3, 1, column}},
                                     30 - token, 150 - column);
      for (int64_t n = token; n < 30; ++n)
        for (int64_t i = column; i < 150; ++i)
          REQUIRE(part.data[static_cast<size_t>((n - token) * (150 - column) + i - column)] ==
                  whole.data[static_cast<size_t>(n * 150 + i)]);
    }
}

TEST_CASE(
    "masks of different seeds, steps, layers, linear layers, tokens and columns are independent") {
  constexpr int64_t kTokens = 300, kWidth = 300;
  constexpr double p = 0.3, kBoth = p * p, kDraws = kTokens * kWidth;
  const MaskPosition position{.attrs = {p, 1, 0}};
  const Array mask = kernel_mask(position, kTokens, kWidth);
  const std::vector<std::pair<const char*, std::function<void(MaskPosition&)>>> changes{
      {"seed", [](MaskPosition& other) { other.key = dropout_key(6, 1); }},
      {"step", [](MaskPosition& other) { other.key = dropout_key(5, 2); }},
      {"layer", [](MaskPosition& other) { other.layer += 1; }},
      {"site", [](MaskPosition& other) { other.attrs.site += 1; }},
      {"next token", [](MaskPosition& other) { other.first_token += 1; }},
      {"token of another micro-batch", [](MaskPosition& other) { other.first_token += 4096; }},
      {"next column", [](MaskPosition& other) { other.attrs.first_column += 1; }},
      {"column after that", [](MaskPosition& other) { other.attrs.first_column += 2; }},
      {"16 columns on", [](MaskPosition& other) { other.attrs.first_column += 16; }},
      // Two multiplications of a column's higher bits would show here.
      {"the next block", [](MaskPosition& other) { other.attrs.first_column += 4096; }},
      {"12288 columns on", [](MaskPosition& other) { other.attrs.first_column += 12288; }},
      {"20480 columns on", [](MaskPosition& other) { other.attrs.first_column += 20480; }},
      {"49152 columns on", [](MaskPosition& other) { other.attrs.first_column += 49152; }},
      {"half a row on", [](MaskPosition& other) { other.attrs.first_column += 65536; }}};
  for (const auto& [name, change] : changes) {
    INFO(name);
    MaskPosition moved = position;
    change(moved);
    const Array other = kernel_mask(moved, kTokens, kWidth);
    double both = 0;
    for (size_t i = 0; i < mask.data.size(); ++i)
      both += mask.data[i] == 0 && other.data[i] == 0 ? 1 : 0;
    REQUIRE(count_deviations(both / kDraws, kBoth, kDraws) < 4);
  }
}

TEST_CASE("all columns and all tokens are dropped equally often") {
  constexpr int64_t kTokens = 2000, kWidth = 512;
  constexpr double p = 0.2;
  const Array mask = kernel_mask({.attrs = {p, 0, 0}}, kTokens, kWidth);
  std::vector<double> by_token(kTokens), by_column(kWidth);
  for (size_t n = 0; n < kTokens; ++n)
    for (size_t i = 0; i < kWidth; ++i)
      if (mask.data[n * kWidth + i] == 0) ++by_token[n], ++by_column[i];
  // The sum of k independent, squared, normalized deviations has mean k and variance 2 k.
  const auto chi_square = [&](const std::vector<double>& counts, double draws) {
    double sum = 0;
    for (const double count : counts) sum += std::pow(count_deviations(count / draws, p, draws), 2);
    return (sum - static_cast<double>(counts.size())) /
           std::sqrt(2.0 * static_cast<double>(counts.size()));
  };
  REQUIRE(std::abs(chi_square(by_token, kWidth)) < 4);
  REQUIRE(std::abs(chi_square(by_column, kTokens)) < 4);
}

}  // namespace
}  // namespace ftrun::testing
