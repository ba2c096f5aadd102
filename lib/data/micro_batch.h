#pragma once

#include <cstdint>
#include <vector>

namespace ftrun {

/// MicroBatch is one micro-batch of one rank: B rows, one for each sequence, of T positions
/// (SequenceSet::padded_length). Each list has B*T entries, row-major.
struct MicroBatch {
  /// The ids of the input tokens. Padding is id 0.
  std::vector<int32_t> tokens;
  /// The id to be predicted at each position (already shifted), or kIgnoredLabel if the position
  /// does not count.
  std::vector<int32_t> labels;
  /// The index of each position in its document (or in the piece of a split document), for rotary
  /// embeddings: 0 ... T-1 in a sequence of the concat packing. 0 in padding.
  std::vector<int32_t> positions;
  /// The index in the sequence of the first position to which each position may attend: 0 in the
  /// concat packing, the document's first position otherwise. A padding position may attend only to
  /// itself.
  std::vector<int32_t> starts;
  /// The index of the micro-batch's first position among all positions of the step's global batch,
  /// sequence after sequence, without their padding. It is the same in every step.
  int64_t first_token = 0;
  /// The number of labels of this micro-batch on this rank that count.
  int64_t counted_tokens = 0;
};

/// The number of lists of a MicroBatch that have an entry for each position.
inline constexpr int64_t kBatchLists = 4;

/// StepBatch holds all batches on which one rank trains in one optimizer step.
struct StepBatch {
  int64_t step = 0;
  /// The batches, one for each micro-batch.
  std::vector<MicroBatch> micro_batches;
  /// The number of labels that count on this rank, and over all ranks and micro-batches. The loss
  /// of each token is weighted by 1 / counted_tokens_global; when that is 0 (possible under the
  /// concat packing with a loss mask) the step has nothing to learn from.
  int64_t counted_tokens_local = 0;
  int64_t counted_tokens_global = 0;
  /// The number of passes over the data set that are complete after this step.
  double epoch = 0;
};

}  // namespace ftrun
