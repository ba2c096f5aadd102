#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/batch.h"
#include "data/row_reader.h"
#include "data/sample_set.h"

namespace ftrun {

/// ValidationReader distributes the first N rows of a validation set, in file order, over ranks and
/// micro-batches, so that every rank makes the same number of passes. Slots without a row hold
/// padding, whose labels do not count.
class ValidationReader {
 public:
  /// Uses min(sequences, samples.size()) rows (0: all); a pass has `micro_batches` batches of
  /// `micro_batch` rows. `samples` must outlive this reader.
  ValidationReader(const SampleSet& samples, int64_t sequences, int64_t micro_batch, int64_t ranks,
                   int64_t rank, int64_t vocab_rows, int64_t micro_batches = 1);

  int64_t sequences() const { return sequences_; }
  /// Returns the number of passes that each rank makes.
  int64_t rounds() const;
  /// Returns the number of labels that count in all sequences: the loss is the sum over all ranks
  /// and rounds divided by this number.
  int64_t counted_tokens_global() const { return counted_; }
  /// Reads the batches of pass `round`, valid until the next call. Slots without a row have no
  /// label that counts.
  std::span<const Batch> read(int64_t round);

 private:
  RowReader reader_;
  int64_t sequences_, micro_batch_, ranks_, rank_;
  int64_t counted_ = 0;
  std::vector<Batch> batches_;
};

}  // namespace ftrun
