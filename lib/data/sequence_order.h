#pragma once

#include <cstdint>
#include <vector>

namespace ftrun {

/// SequenceOrder is the order in which the sequences of a data set are used: a stream of epochs,
/// each a permutation of all sequences, which is computed and not stored. It depends only on seed
/// and index.
class SequenceOrder {
 public:
  /// Takes `sequences` >= 1. Without shuffling every epoch is in file order. `epoch_sequences` in
  /// 1..sequences is the number of sequences of the permutation that an epoch uses (0: all).
  SequenceOrder(int64_t sequences, bool shuffle, uint64_t seed, int64_t epoch_sequences = 0);

  /// Returns the sequence at `index` >= 0 of the stream.
  int64_t sequence_at(int64_t index) const;
  int64_t sequences() const { return sequences_; }
  int64_t epoch_sequences() const { return epoch_sequences_; }

 private:
  uint64_t permute_index(uint64_t index, uint64_t epoch) const;
  int64_t sequences_, epoch_sequences_;
  bool shuffle_;
  uint64_t seed_;
  int half_bits_;
};

/// MixedDataSet describes one of several data sets that are mixed: its number of sequences, and how
/// many of them (with repetitions) an epoch of the mix uses.
struct MixedDataSet {
  int64_t sequences = 0;
  int64_t epoch_sequences = 0;
  bool operator==(const MixedDataSet&) const = default;
};

/// MixedOrder is the order of one data set, or of a mix. Each epoch is one permutation of the
/// sequences that it uses from all sets, and each set continues in its own order from epoch to
/// epoch. Sequences are numbered one set after the other. Like SequenceOrder it depends only on
/// seed and index.
class MixedOrder {
 public:
  /// Makes the order of one data set.
  MixedOrder(const SequenceOrder& order)
      : sets_{{0, 0, order}}, entries_(order) {}  // NOLINT: the order of one set is also a mix
  /// Makes the order of a mix. `sets` is not empty, and all of its numbers are at least 1.
  /// `epoch_sequences` is that of SequenceOrder, counted in the sequences that an epoch uses from
  /// all sets together.
  MixedOrder(const std::vector<MixedDataSet>& sets, bool shuffle, uint64_t seed,
             int64_t epoch_sequences = 0);

  /// Returns the sequence at `index` >= 0 of the stream.
  int64_t sequence_at(int64_t index) const;
  /// Returns the number of sequences of all sets.
  int64_t sequences() const { return sequences_; }
  int64_t epoch_sequences() const { return entries_.epoch_sequences(); }

 private:
  struct OrderedSet {
    int64_t first_sequence = 0;  // among the sequences of all sets
    int64_t first_entry = 0;     // of an epoch
    SequenceOrder order;         // of its own sequences
  };
  std::vector<OrderedSet> sets_;
  /// The order of an epoch's entries. An epoch has an entry for each sequence that it uses, one set
  /// after the other.
  SequenceOrder entries_;
  int64_t sequences_ = entries_.sequences();
};

}  // namespace ftrun
