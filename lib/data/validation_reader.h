#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/micro_batch.h"
#include "data/sequence_reader.h"
#include "data/sequence_set.h"

namespace ftrun {

/// ValidationReader distributes the first N sequences of a validation set, in file order, over
/// ranks and micro-batches, so that every rank makes the same number of passes. Rows without a
/// sequence hold padding, whose labels do not count.
class ValidationReader {
 public:
  /// Uses min(sequences, set.size()) sequences (0: all); a pass has `micro_batches` batches of
  /// `micro_batch_size` sequences. `set` must outlive this reader.
  ValidationReader(const SequenceSet& set, int64_t sequences, int64_t micro_batch_size,
                   int64_t ranks, int64_t rank, int64_t vocab_rows, int64_t micro_batches = 1);

  int64_t sequences() const { return sequences_; }
  /// Returns the number of passes that each rank makes.
  int64_t passes() const;
  /// Returns the number of labels that count in all sequences: the loss is the sum over all ranks
  /// and passes divided by this number.
  int64_t counted_tokens_global() const { return counted_tokens_; }
  /// Reads the batches of pass `pass`, valid until the next call. Rows without a sequence have no
  /// label that counts.
  std::span<const MicroBatch> read(int64_t pass);

 private:
  SequenceReader reader_;
  int64_t sequences_, micro_batch_size_, ranks_, rank_;
  int64_t counted_tokens_ = 0;
  std::vector<MicroBatch> batches_;
};

}  // namespace ftrun
