#pragma once

#include <cstdint>
#include <vector>

namespace ftrun {

/// SampleOrder is the order in which rows are used. It depends only on seed and position: the
/// stream of samples is a sequence of epochs, each a permutation of all rows, which is computed and
/// not stored.
class SampleOrder {
 public:
  /// Takes `rows` >= 1. Without shuffling every epoch is in file order. `epoch_rows` in 1..rows is
  /// the number of rows of the permutation that an epoch uses (0: all).
  SampleOrder(int64_t rows, bool shuffle, uint64_t seed, int64_t epoch_rows = 0);

  /// Returns the row at position `sample` >= 0 of the stream.
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

/// MixedRows describes one of several data sets that are mixed: its number of rows, and how many of
/// them (with repetitions) an epoch of the mix uses.
struct MixedRows {
  int64_t rows = 0;
  int64_t epoch_rows = 0;
  bool operator==(const MixedRows&) const = default;
};

/// MixedOrder is the order of one data set, or of a mix. Each epoch is one permutation of the rows
/// that it uses from all sets, and each set continues in its own order from epoch to epoch. Rows
/// are numbered one set after the other. Like SampleOrder it depends only on seed and position.
class MixedOrder {
 public:
  /// Makes the order of one data set.
  MixedOrder(const SampleOrder& order) : sets_{{0, 0, order}}, all_(order) {}  // NOLINT: it is one
  /// Makes the order of a mix. `sets` is not empty, and all of its numbers are at least 1.
  /// `epoch_rows` is that of SampleOrder, counted in the rows that an epoch uses from all sets
  /// together.
  MixedOrder(const std::vector<MixedRows>& sets, bool shuffle, uint64_t seed,
             int64_t epoch_rows = 0);

  /// Returns the row at position `sample` >= 0 of the stream.
  int64_t row(int64_t sample) const;
  /// Returns the number of rows of all sets.
  int64_t rows() const { return rows_; }
  int64_t epoch_rows() const { return all_.epoch_rows(); }

 private:
  struct Set {
    int64_t first_row = 0;   // of all sets' rows
    int64_t first_slot = 0;  // of an epoch
    SampleOrder order;       // of its own rows
  };
  std::vector<Set> sets_;
  SampleOrder all_;
  int64_t rows_ = all_.rows();
};

/// BatchSlots computes the position in the stream of samples of row `m` of micro-batch `slot` of
/// data-parallel rank `rank`: ((step * accumulation + slot) * ranks + rank) * micro_batch + m, so
/// that a step's set of samples depends only on the global batch.
struct BatchSlots {
  int64_t micro_batch = 1;
  int64_t accumulation = 1;
  /// The number of data-parallel ranks, and the number of this one.
  int64_t ranks = 1;
  int64_t rank = 0;

  int64_t global_batch() const { return micro_batch * accumulation * ranks; }
  int64_t first_sample(int64_t step, int64_t slot) const {
    return ((step * accumulation + slot) * ranks + rank) * micro_batch;
  }
};

}  // namespace ftrun
