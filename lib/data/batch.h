#pragma once

#include <cstdint>
#include <vector>

namespace ftrun {

/// Batch is one micro-batch of one rank: B rows of T positions (SampleSet::row_positions), each
/// list [B*T], row-major.
struct Batch {
  /// Input ids. Padding is id 0.
  std::vector<int32_t> tokens;
  /// Id to be predicted at each position (already shifted), kIgnoredLabel if the position does not
  /// count.
  std::vector<int32_t> labels;
  /// Index inside the document (or the piece of a split one), for rotary embeddings: 0 ... T-1 in a
  /// whole row of the concat packing. 0 in padding.
  std::vector<int32_t> positions;
  /// Index in the row of the first position that this one may attend to: 0 in the concat packing,
  /// the document's first position otherwise. A padding position may attend only to itself.
  std::vector<int32_t> starts;
  /// Place of the first position among those of the step's global batch, row after row, without
  /// the rows' padding: the same in every step.
  int64_t first_token = 0;
  /// Labels of this micro-batch on this rank that count.
  int64_t counted_tokens = 0;
};

/// StepBatch is all that one optimizer step of one rank trains on.
struct StepBatch {
  int64_t step = 0;
  /// A batch for each accumulation slot.
  std::vector<Batch> micro_batches;
  /// Labels that count on this rank, and over all ranks and slots of the step. The loss scale is
  /// 1 / counted_tokens_global; when that is 0 (possible under the concat packing with a loss mask)
  /// the step has nothing to learn from.
  int64_t counted_tokens_local = 0;
  int64_t counted_tokens_global = 0;
  /// Passes over the data set completed when this step is done.
  double epoch = 0;
};

}  // namespace ftrun
