#include "data/sequence_order.h"

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

SequenceOrder::SequenceOrder(int64_t sequences, bool shuffle, uint64_t seed,
                             int64_t epoch_sequences)
    : sequences_(sequences),
      epoch_sequences_(epoch_sequences == 0 ? sequences : epoch_sequences),
      shuffle_(shuffle),
      seed_(seed),
      half_bits_(half_bits_for(static_cast<uint64_t>(sequences))) {
  require(sequences >= 1, "an order has at least one sequence");
  require(epoch_sequences_ >= 1 && epoch_sequences_ <= sequences,
          "an epoch has at most as many sequences as the data");
  require(static_cast<uint64_t>(sequences) <= uint64_t{1} << (2 * half_bits_),
          "there are at most 2^62 sequences");
}

int64_t SequenceOrder::sequence_at(int64_t index) const {
  require(index >= 0, "an index in the stream is at least 0");
  const int64_t epoch = index / epoch_sequences_, in_epoch = index % epoch_sequences_;
  if (!shuffle_) return in_epoch;
  return static_cast<int64_t>(
      permute_index(static_cast<uint64_t>(in_epoch), static_cast<uint64_t>(epoch)));
}

/// Permutes an index by a keyed Feistel network over the next larger word with an even number of
/// bits, applied until the result is below sequences_ (cycle walking). This is a permutation of the
/// sequences in constant memory, with fewer than 4 applications on average (256 / sequences_ below
/// 64 sequences). A resumed run must repeat it: any change to it changes the order of every run.
uint64_t SequenceOrder::permute_index(uint64_t index, uint64_t epoch) const {
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
  } while (index >= static_cast<uint64_t>(sequences_));
  return index;
}

namespace {

int64_t count_epoch_entries(const std::vector<MixedDataSet>& sets) {
  require(!sets.empty(), "a mix has at least one data set");
  int64_t total = 0;
  for (const MixedDataSet& set : sets) {
    require(set.sequences >= 1 && set.epoch_sequences >= 1,
            "each data set of a mix gives at least one sequence");
    total += set.epoch_sequences;
  }
  return total;
}

}  // namespace

MixedOrder::MixedOrder(const std::vector<MixedDataSet>& sets, bool shuffle, uint64_t seed,
                       int64_t epoch_sequences)
    : entries_(count_epoch_entries(sets), shuffle, seed, epoch_sequences), sequences_(0) {
  int64_t entry = 0;
  for (const MixedDataSet& set : sets) {
    const uint64_t set_seed =
        mix_bits(seed + 1) + sets_.size();  // sets of equal size get different orders
    sets_.push_back({sequences_, entry, SequenceOrder(set.sequences, shuffle, set_seed)});
    sequences_ += set.sequences;
    entry += set.epoch_sequences;
  }
}

int64_t MixedOrder::sequence_at(int64_t index) const {
  const int64_t entry = entries_.sequence_at(index);
  if (sets_.size() == 1) return entry;
  const auto after =
      std::upper_bound(sets_.begin(), sets_.end(), entry,
                       [](int64_t e, const OrderedSet& set) { return e < set.first_entry; });
  const OrderedSet& set = *(after - 1);
  const int64_t end = after == sets_.end() ? entries_.sequences() : after->first_entry;
  const int64_t epoch = index / entries_.epoch_sequences();
  return set.first_sequence +
         set.order.sequence_at(epoch * (end - set.first_entry) + entry - set.first_entry);
}

}  // namespace ftrun
