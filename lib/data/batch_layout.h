#pragma once

#include <cstdint>

namespace ftrun {

/// BatchLayout describes how the sequences of a step are divided among the data-parallel ranks and
/// their micro-batches. A step uses consecutive sequences of the stream (SequenceOrder), so its set
/// of sequences depends only on the size of the global batch.
struct BatchLayout {
  /// The number of sequences of a micro-batch.
  int64_t micro_batch_size = 1;
  /// The number of micro-batches of each rank (gradient accumulation).
  int64_t micro_batches = 1;
  /// The number of data-parallel ranks.
  int64_t ranks = 1;

  /// Returns the number of sequences of a step.
  int64_t global_batch() const { return micro_batch_size * micro_batches * ranks; }
  /// Returns the index in the stream of the first sequence of a micro-batch of a data-parallel
  /// rank; the others follow it.
  int64_t first_sequence(int64_t step, int64_t micro_batch, int64_t rank) const {
    return ((step * micro_batches + micro_batch) * ranks + rank) * micro_batch_size;
  }
};

}  // namespace ftrun
