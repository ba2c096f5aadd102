#include "data/sequence_order.h"

#include "data/batch_layout.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

using namespace ftrun;

namespace {

std::vector<int64_t> epoch_of(const SequenceOrder& order, int64_t epoch) {
  std::vector<int64_t> sequences;
  for (int64_t i = 0; i < order.sequences(); ++i)
    sequences.push_back(order.sequence_at(epoch * order.sequences() + i));
  return sequences;
}

/// Returns the sequences of one step, over all ranks and micro-batches, in the order of the stream.
std::vector<int64_t> sequences_of_step(const SequenceOrder& order, const BatchLayout& layout,
                                       int64_t step) {
  std::vector<int64_t> sequences(static_cast<size_t>(layout.global_batch()));
  const int64_t begin = step * layout.global_batch();
  for (int64_t rank = 0; rank < layout.ranks; ++rank) {
    for (int64_t micro_batch = 0; micro_batch < layout.micro_batches; ++micro_batch) {
      const int64_t first = layout.first_sequence(step, micro_batch, rank);
      for (int64_t at = first; at < first + layout.micro_batch_size; ++at)
        sequences[static_cast<size_t>(at - begin)] = order.sequence_at(at);
    }
  }
  return sequences;
}

}  // namespace

TEST_CASE("an epoch uses every sequence once, whatever the number of sequences", "[order]") {
  for (const int64_t sequences : {1, 2, 3, 5, 16, 17, 255, 256, 257, 1000, 4096, 4097}) {
    const SequenceOrder order(sequences, true, 7);
    for (const int64_t epoch : {0, 1, 99}) {
      std::vector<int64_t> used = epoch_of(order, epoch);
      std::sort(used.begin(), used.end());
      for (int64_t i = 0; i < sequences; ++i) REQUIRE(used[static_cast<size_t>(i)] == i);
    }
  }
}

TEST_CASE("without shuffling every epoch is in file order", "[order]") {
  const SequenceOrder order(5, false, 1);
  REQUIRE(epoch_of(order, 0) == std::vector<int64_t>{0, 1, 2, 3, 4});
  REQUIRE(epoch_of(order, 3) == std::vector<int64_t>{0, 1, 2, 3, 4});
}

TEST_CASE("seeds and epochs give different orders, the same seed the same", "[order]") {
  std::set<std::vector<int64_t>> seen;
  for (uint64_t seed = 0; seed < 8; ++seed)
    for (int64_t epoch = 0; epoch < 8; ++epoch)
      seen.insert(epoch_of(SequenceOrder(100, true, seed), epoch));
  REQUIRE(seen.size() == 64);
  REQUIRE(epoch_of(SequenceOrder(100, true, 3), 2) == epoch_of(SequenceOrder(100, true, 3), 2));
}

TEST_CASE("the order is the same as in older builds, whose runs may be resumed", "[order]") {
  REQUIRE(epoch_of(SequenceOrder(10, true, 42), 0) ==
          std::vector<int64_t>{7, 8, 0, 2, 9, 4, 5, 3, 1, 6});
  REQUIRE(epoch_of(SequenceOrder(10, true, 42), 1) ==
          std::vector<int64_t>{8, 5, 4, 7, 2, 6, 3, 0, 1, 9});
  const SequenceOrder large(int64_t{1} << 40, true, 42);
  REQUIRE(large.sequence_at(123456789) == 1023039702354);
}

TEST_CASE("shuffled positions are spread evenly", "[order]") {
  // The order of 50 sequences is drawn for many seeds. The position of sequence 0 and the successor
  // of each sequence must be uniform: chi-square with 49 degrees of freedom stays below 100
  // (p < 1e-5) for both.
  constexpr int64_t kSequences = 50;
  constexpr int kSeeds = 20000;
  std::vector<double> place(kSequences), step(kSequences);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const SequenceOrder order(kSequences, true, seed);
    ++place[static_cast<size_t>(order.sequence_at(0))];
    ++step[static_cast<size_t>((order.sequence_at(8) - order.sequence_at(7) + kSequences) %
                               kSequences)];
  }
  double chi_place = 0, chi_step = 0;
  for (int64_t i = 0; i < kSequences; ++i) {
    const double expected = 1.0 * kSeeds / kSequences;
    chi_place += std::pow(place[static_cast<size_t>(i)] - expected, 2) / expected;
    const double expected_step = 1.0 * kSeeds / (kSequences - 1);
    if (i > 0)
      chi_step += std::pow(step[static_cast<size_t>(i)] - expected_step, 2) / expected_step;
  }
  REQUIRE(step[0] == 0);
  REQUIRE(chi_place < 100);
  REQUIRE(chi_step < 100);
}

TEST_CASE("a step's sequences depend on the global batch, not on how ranks divide it", "[order]") {
  const SequenceOrder order(37, true, 11);
  for (int64_t step = 0; step < 6; ++step) {
    const auto alone = sequences_of_step(order, {.micro_batch_size = 72}, step);
    for (const int64_t ranks : {1, 2, 3, 4, 8}) {
      for (const int64_t micro_batches : {1, 3}) {
        const BatchLayout layout{.micro_batch_size = 72 / ranks / micro_batches,
                                 .micro_batches = micro_batches,
                                 .ranks = ranks};
        REQUIRE(layout.global_batch() == 72);
        REQUIRE(sequences_of_step(order, layout, step) == alone);
      }
    }
  }
}

TEST_CASE("the stream continues into the next epoch in the middle of a step", "[order]") {
  const SequenceOrder order(5, false, 0);
  const BatchLayout layout{.micro_batch_size = 2, .ranks = 2};
  REQUIRE(sequences_of_step(order, layout, 0) == std::vector<int64_t>{0, 1, 2, 3});
  REQUIRE(sequences_of_step(order, layout, 1) == std::vector<int64_t>{4, 0, 1, 2});
}

TEST_CASE("an epoch may use a part of its permutation, a different one each time", "[order]") {
  const SequenceOrder order(10, true, 1, 8);
  std::set<int64_t> left_out;
  for (int64_t epoch = 0; epoch < 40; ++epoch) {
    std::set<int64_t> used;
    for (int64_t i = 0; i < 8; ++i) used.insert(order.sequence_at(epoch * 8 + i));
    REQUIRE(used.size() == 8);
    for (int64_t sequence = 0; sequence < 10; ++sequence)
      if (used.count(sequence) == 0) left_out.insert(sequence);
  }
  REQUIRE(left_out.size() == 10);
}

TEST_CASE("a mix of one data set has the order of that data set alone", "[order]") {
  const SequenceOrder plain(37, true, 11, 32);
  for (const MixedOrder& mix : {MixedOrder(plain), MixedOrder({{37, 37}}, true, 11, 32)}) {
    REQUIRE(mix.epoch_sequences() == 32);
    for (int64_t i = 0; i < 200; ++i) REQUIRE(mix.sequence_at(i) == plain.sequence_at(i));
  }
}

TEST_CASE("each epoch of a mix takes the wanted number of sequences from every data set",
          "[order]") {
  const std::vector<MixedDataSet> sets{{100, 100}, {7, 30}, {50, 3}};
  for (const bool shuffle : {true, false}) {
    const MixedOrder mix(sets, shuffle, 5);
    REQUIRE(mix.sequences() == 157);
    REQUIRE(mix.epoch_sequences() == 133);
    for (const int64_t epoch : {0, 1, 2, 40}) {
      std::vector<int64_t> seen(157);
      for (int64_t i = 0; i < 133; ++i)
        ++seen[static_cast<size_t>(mix.sequence_at(epoch * 133 + i))];
      REQUIRE(std::all_of(seen.begin(), seen.begin() + 100, [](int64_t n) { return n == 1; }));
      REQUIRE(std::all_of(seen.begin() + 100, seen.begin() + 107,
                          [](int64_t n) { return n >= 3 && n <= 5; }));
      REQUIRE(std::count_if(seen.begin() + 107, seen.end(), [](int64_t n) { return n > 0; }) == 3);
    }
  }
}

TEST_CASE("a data set that an epoch does not finish continues in the next epoch", "[order]") {
  for (const bool shuffle : {true, false}) {
    const MixedOrder mix({{20, 20}, {12, 3}}, shuffle, 9);
    std::vector<int64_t> seen(12);
    for (int64_t i = 0; i < 4 * 23; ++i)
      if (const int64_t sequence = mix.sequence_at(i); sequence >= 20)
        ++seen[static_cast<size_t>(sequence - 20)];
    REQUIRE(seen == std::vector<int64_t>(12, 1));
  }
}

TEST_CASE("the order of a mix is a function of seed and position", "[order]") {
  const std::vector<MixedDataSet> sets{{10, 10}, {10, 10}};
  std::set<std::vector<int64_t>> orders;
  for (const uint64_t seed : {1, 2, 3}) {
    std::vector<int64_t> forward, backward(40);
    for (int64_t i = 0; i < 40; ++i) forward.push_back(MixedOrder(sets, true, seed).sequence_at(i));
    const MixedOrder again(sets, true, seed);
    for (int64_t i = 39; i >= 0; --i) backward[static_cast<size_t>(i)] = again.sequence_at(i);
    REQUIRE(forward == backward);
    orders.insert(forward);
  }
  REQUIRE(orders.size() == 3);
}
