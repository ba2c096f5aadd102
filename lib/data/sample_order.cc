#include "data/sample_order.h"

#include <algorithm>

#include "base/error.h"
#include "base/mix_bits.h"

namespace ftrun {
namespace {

constexpr int kRounds = 6;

/// Returns half the number of bits of the smallest word with an even number of bits that holds
/// every index below n; at least 4, because Feistel networks on narrower words mix poorly.
int half_bits_for(uint64_t n) {
  int half = 4;
  while (half < 31 && (uint64_t{1} << (2 * half)) < n) ++half;
  return half;
}

}  // namespace

SampleOrder::SampleOrder(int64_t rows, bool shuffle, uint64_t seed, int64_t epoch_rows)
    : rows_(rows),
      epoch_rows_(epoch_rows == 0 ? rows : epoch_rows),
      shuffle_(shuffle),
      seed_(seed),
      half_bits_(half_bits_for(static_cast<uint64_t>(rows))) {
  require(rows >= 1, "an order has at least one row");
  require(epoch_rows_ >= 1 && epoch_rows_ <= rows, "an epoch has at most as many rows as the data");
  require(static_cast<uint64_t>(rows) <= uint64_t{1} << (2 * half_bits_),
          "there are at most 2^62 rows");
}

int64_t SampleOrder::row(int64_t sample) const {
  require(sample >= 0, "a sample has a number of at least 0");
  const int64_t epoch = sample / epoch_rows_, index = sample % epoch_rows_;
  if (!shuffle_) return index;
  return static_cast<int64_t>(permuted(static_cast<uint64_t>(index), static_cast<uint64_t>(epoch)));
}

/// Permutes an index by a keyed Feistel network over the next larger word with an even number of
/// bits, applied until the result is below rows_ (cycle walking). This is a permutation of the rows
/// in constant memory, with fewer than 4 applications on average (256 / rows_ below 64 rows). A
/// resumed run must repeat it: any change to it changes the order of every run.
uint64_t SampleOrder::permuted(uint64_t index, uint64_t epoch) const {
  const uint64_t key = mix_bits(splitmix64(seed_) + epoch);
  const uint64_t low = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_, right = index & low;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t next =
          left ^ (mix_bits(key + right * kRounds + static_cast<uint64_t>(round)) & low);
      left = right;
      right = next;
    }
    index = (left << half_bits_) | right;
  } while (index >= static_cast<uint64_t>(rows_));
  return index;
}

namespace {

int64_t total_epoch_rows(const std::vector<MixedRows>& sets) {
  require(!sets.empty(), "a mix has at least one data set");
  int64_t total = 0;
  for (const MixedRows& set : sets) {
    require(set.rows >= 1 && set.epoch_rows >= 1, "each data set of a mix gives at least one row");
    total += set.epoch_rows;
  }
  return total;
}

}  // namespace

MixedOrder::MixedOrder(const std::vector<MixedRows>& sets, bool shuffle, uint64_t seed,
                       int64_t epoch_rows)
    : all_(total_epoch_rows(sets), shuffle, seed, epoch_rows), rows_(0) {
  int64_t slot = 0;
  for (const MixedRows& set : sets) {
    const uint64_t own =
        mix_bits(seed + 1) + sets_.size();  // sets of equal size get different orders
    sets_.push_back({rows_, slot, SampleOrder(set.rows, shuffle, own)});
    rows_ += set.rows;
    slot += set.epoch_rows;
  }
}

int64_t MixedOrder::row(int64_t sample) const {
  const int64_t slot = all_.row(sample);
  if (sets_.size() == 1) return slot;
  const auto after = std::upper_bound(sets_.begin(), sets_.end(), slot,
                                      [](int64_t s, const Set& set) { return s < set.first_slot; });
  const Set& set = *(after - 1);
  const int64_t end = after == sets_.end() ? all_.rows() : after->first_slot;
  const int64_t epoch = sample / all_.epoch_rows();
  return set.first_row + set.order.row(epoch * (end - set.first_slot) + slot - set.first_slot);
}

}  // namespace ftrun
