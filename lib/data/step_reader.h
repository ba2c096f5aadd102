#pragma once

#include <cstdint>

#include "data/batch.h"
#include "data/row_reader.h"
#include "data/sample_order.h"
#include "data/sample_set.h"

namespace ftrun {

/// StepReader makes the batches of any step; the step's number is its whole state.
class StepReader {
 public:
  /// Makes a reader of a stream of this shape and order. `samples` must outlive this reader.
  StepReader(const SampleSet& samples, const BatchSlots& shape, const MixedOrder& order,
             int64_t vocab_rows);
  /// Fills `out` (whose storage is reused) with step `step` >= 0. Throws the errors of
  /// RowReader::fill.
  void read(int64_t step, StepBatch& out);

 private:
  int64_t count_others(int64_t step);
  const SampleSet& samples_;
  BatchSlots shape_;
  MixedOrder order_;
  RowReader reader_;
};

}  // namespace ftrun
