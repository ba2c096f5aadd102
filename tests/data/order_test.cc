#include "data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

using namespace ftrun;

namespace {

std::vector<int64_t> epoch_of(const SampleOrder& order, int64_t epoch) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < order.rows(); ++i) rows.push_back(order.row(epoch * order.rows() + i));
  return rows;
}

/// Returns the rows of one step, over all ranks and slots, in the order of the stream.
std::vector<int64_t> rows_of_step(const SampleOrder& order, BatchSlots shape, int64_t step) {
  std::vector<int64_t> rows(static_cast<size_t>(shape.global_batch()));
  for (shape.rank = 0; shape.rank < shape.ranks; ++shape.rank) {
    for (int64_t slot = 0; slot < shape.accumulation; ++slot) {
      for (int64_t m = 0; m < shape.micro_batch; ++m) {
        const int64_t sample = shape.first_sample(step, slot) + m;
        rows[static_cast<size_t>(sample - step * shape.global_batch())] = order.row(sample);
      }
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("an epoch uses every row once, whatever the number of rows", "[order]") {
  for (const int64_t rows : {1, 2, 3, 5, 16, 17, 255, 256, 257, 1000, 4096, 4097}) {
    const SampleOrder order(rows, true, 7);
    for (const int64_t epoch : {0, 1, 99}) {
      std::vector<int64_t> used = epoch_of(order, epoch);
      std::sort(used.begin(), used.end());
      for (int64_t i = 0; i < rows; ++i) REQUIRE(used[static_cast<size_t>(i)] == i);
    }
  }
}

TEST_CASE("without shuffling every epoch is in file order", "[order]") {
  const SampleOrder order(5, false, 1);
  REQUIRE(epoch_of(order, 0) == std::vector<int64_t>{0, 1, 2, 3, 4});
  REQUIRE(epoch_of(order, 3) == std::vector<int64_t>{0, 1, 2, 3, 4});
}

TEST_CASE("seeds and epochs give different orders, the same seed the same", "[order]") {
  std::set<std::vector<int64_t>> seen;
  for (uint64_t seed = 0; seed < 8; ++seed)
    for (int64_t epoch = 0; epoch < 8; ++epoch)
      seen.insert(epoch_of(SampleOrder(100, true, seed), epoch));
  REQUIRE(seen.size() == 64);
  REQUIRE(epoch_of(SampleOrder(100, true, 3), 2) == epoch_of(SampleOrder(100, true, 3), 2));
}

TEST_CASE("the order is frozen: a resumed run of an older build must see the same rows",
          "[order]") {
  REQUIRE(epoch_of(SampleOrder(10, true, 42), 0) ==
          std::vector<int64_t>{7, 8, 0, 2, 9, 4, 5, 3, 1, 6});
  REQUIRE(epoch_of(SampleOrder(10, true, 42), 1) ==
          std::vector<int64_t>{8, 5, 4, 7, 2, 6, 3, 0, 1, 9});
  const SampleOrder large(int64_t{1} << 40, true, 42);
  REQUIRE(large.row(123456789) == 1023039702354);
}

TEST_CASE("shuffled positions are spread evenly", "[order]") {
  // The order of 50 rows is drawn for many seeds. The position of row 0 and the successor of each
  // row must be uniform: chi-square with 49 degrees of freedom stays below 100 (p < 1e-5) for both.
  constexpr int64_t kRows = 50;
  constexpr int kSeeds = 20000;
  std::vector<double> place(kRows), step(kRows);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const SampleOrder order(kRows, true, seed);
    ++place[static_cast<size_t>(order.row(0))];
    ++step[static_cast<size_t>((order.row(8) - order.row(7) + kRows) % kRows)];
  }
  double chi_place = 0, chi_step = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    const double expected = 1.0 * kSeeds / kRows;
    chi_place += std::pow(place[static_cast<size_t>(i)] - expected, 2) / expected;
    const double expected_step = 1.0 * kSeeds / (kRows - 1);
    if (i > 0)
      chi_step += std::pow(step[static_cast<size_t>(i)] - expected_step, 2) / expected_step;
  }
  REQUIRE(step[0] == 0);
  REQUIRE(chi_place < 100);
  REQUIRE(chi_step < 100);
}

TEST_CASE("a step's rows depend on the global batch, not on how ranks divide it", "[order]") {
  const SampleOrder order(37, true, 11);
  for (int64_t step = 0; step < 6; ++step) {
    const auto alone = rows_of_step(order, {.micro_batch = 72}, step);
    for (const int64_t ranks : {1, 2, 3, 4, 8}) {
      for (const int64_t accumulation : {1, 3}) {
        const int64_t micro = 72 / ranks / accumulation;
        const BatchSlots shape{.micro_batch = micro, .accumulation = accumulation, .ranks = ranks};
        REQUIRE(shape.global_batch() == 72);
        REQUIRE(rows_of_step(order, shape, step) == alone);
      }
    }
  }
}

TEST_CASE("the stream continues into the next epoch in the middle of a step", "[order]") {
  const SampleOrder order(5, false, 0);
  const BatchSlots shape{.micro_batch = 2, .accumulation = 1, .ranks = 2};
  REQUIRE(rows_of_step(order, shape, 0) == std::vector<int64_t>{0, 1, 2, 3});
  REQUIRE(rows_of_step(order, shape, 1) == std::vector<int64_t>{4, 0, 1, 2});
}

TEST_CASE("an epoch may use a part of its permutation, a different one each time", "[order]") {
  const SampleOrder order(10, true, 1, 8);
  std::set<int64_t> left_out;
  for (int64_t epoch = 0; epoch < 40; ++epoch) {
    std::set<int64_t> used;
    for (int64_t i = 0; i < 8; ++i) used.insert(order.row(epoch * 8 + i));
    REQUIRE(used.size() == 8);
    for (int64_t row = 0; row < 10; ++row)
      if (used.count(row) == 0) left_out.insert(row);
  }
  REQUIRE(left_out.size() == 10);
}

TEST_CASE("a mix of one data set is that data set", "[order]") {
  const SampleOrder plain(37, true, 11, 32);
  for (const MixedOrder& mix : {MixedOrder(plain), MixedOrder({{37, 37}}, true, 11, 32)}) {
    REQUIRE(mix.epoch_rows() == 32);
    for (int64_t i = 0; i < 200; ++i) REQUIRE(mix.row(i) == plain.row(i));
  }
}

TEST_CASE("each epoch of a mix takes the wanted number of rows from every data set", "[order]") {
  const std::vector<MixedRows> sets{{100, 100}, {7, 30}, {50, 3}};
  for (const bool shuffle : {true, false}) {
    const MixedOrder mix(sets, shuffle, 5);
    REQUIRE(mix.rows() == 157);
    REQUIRE(mix.epoch_rows() == 133);
    for (const int64_t epoch : {0, 1, 2, 40}) {
      std::vector<int64_t> seen(157);
      for (int64_t i = 0; i < 133; ++i) ++seen[static_cast<size_t>(mix.row(epoch * 133 + i))];
      REQUIRE(std::all_of(seen.begin(), seen.begin() + 100, [](int64_t n) { return n == 1; }));
      REQUIRE(std::all_of(seen.begin() + 100, seen.begin() + 107,
                          [](int64_t n) { return n >= 3 && n <= 5; }));
      REQUIRE(std::count_if(seen.begin() + 107, seen.end(), [](int64_t n) { return n > 0; }) == 3);
    }
  }
}

TEST_CASE("a data set that an epoch does not finish continues in the next", "[order]") {
  for (const bool shuffle : {true, false}) {
    const MixedOrder mix({{20, 20}, {12, 3}}, shuffle, 9);
    std::vector<int64_t> seen(12);
    for (int64_t i = 0; i < 4 * 23; ++i)
      if (const int64_t row = mix.row(i); row >= 20) ++seen[static_cast<size_t>(row - 20)];
    REQUIRE(seen == std::vector<int64_t>(12, 1));
  }
}

TEST_CASE("the order of a mix is a function of seed and position", "[order]") {
  const std::vector<MixedRows> sets{{10, 10}, {10, 10}};
  std::set<std::vector<int64_t>> orders;
  for (const uint64_t seed : {1, 2, 3}) {
    std::vector<int64_t> forward, backward(40);
    for (int64_t i = 0; i < 40; ++i) forward.push_back(MixedOrder(sets, true, seed).row(i));
    const MixedOrder again(sets, true, seed);
    for (int64_t i = 39; i >= 0; --i) backward[static_cast<size_t>(i)] = again.row(i);
    REQUIRE(forward == backward);
    orders.insert(forward);
  }
  REQUIRE(orders.size() == 3);
}
