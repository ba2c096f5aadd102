#pragma once

#include <cstdint>

namespace ftrun {

/// The order in which rows are used, a function of seed and position alone: the stream of samples
/// is epoch after epoch, each a permutation of all rows that is computed, not stored.
class SampleOrder {
 public:
  /// `rows` >= 1. Without shuffling every epoch is in file order. `epoch_rows` in 1..rows is how
  /// many rows of its permutation an epoch uses (0: all).
  SampleOrder(int64_t rows, bool shuffle, uint64_t seed, int64_t epoch_rows = 0);

  /// The row at position `sample` >= 0 of the stream.
  int64_t row(int64_t sample) const;
  int64_t rows() const { return rows_; }
  int64_t epoch_rows() const { return epoch_rows_; }

 private:
  uint64_t permuted(uint64_t index, uint64_t epoch) const;
  int64_t rows_, epoch_rows_;
  bool shuffle_;
  uint64_t seed_;
  int half_bits_;
};

/// Position in the stream of samples of row `m` of micro-batch `slot` of data-parallel rank `rank`:
/// ((step * accumulation + slot) * ranks + rank) * micro_batch + m, so that a step's set of samples
/// depends on the global batch alone.
struct BatchSlots {
  int64_t micro_batch = 1;
  int64_t accumulation = 1;
  /// Data-parallel ranks, and which of them this is.
  int64_t ranks = 1;
  int64_t rank = 0;

  int64_t global_batch() const { return micro_batch * accumulation * ranks; }
  int64_t first_sample(int64_t step, int64_t slot) const {
    return ((step * accumulation + slot) * ranks + rank) * micro_batch;
  }
};

}  // namespace ftrun
