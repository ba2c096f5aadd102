#pragma once

#include <cstdint>

#include "data/batch_layout.h"
#include "data/micro_batch.h"
#include "data/sequence_order.h"
#include "data/sequence_reader.h"
#include "data/sequence_set.h"

namespace ftrun {

/// StepReader makes the batches of any step; the step's number is its whole state.
class StepReader {
 public:
  /// Makes the reader of data-parallel rank `rank`. `sequences` must outlive this reader.
  StepReader(const SequenceSet& sequences, const BatchLayout& layout, int64_t rank,
             const MixedOrder& order, int64_t vocab_rows);
  /// Fills `out` (whose storage is reused) with step `step` >= 0. Throws the errors of
  /// SequenceReader::fill.
  void read(int64_t step, StepBatch& out);

 private:
  int64_t count_labels_of_others(int64_t step);
  const SequenceSet& sequences_;
  BatchLayout layout_;
  int64_t rank_;
  MixedOrder order_;
  SequenceReader reader_;
};

}  // namespace ftrun
