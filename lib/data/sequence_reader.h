#pragma once

#include <cstdint>
#include <vector>

#include "data/micro_batch.h"
#include "data/packing.h"
#include "data/sequence_set.h"
#include "data/token_dataset.h"

namespace ftrun {

/// SequenceReader copies sequences of a SequenceSet into batches. It keeps buffers between calls
/// and allocates nothing once they are large enough. Each thread needs its own reader.
class SequenceReader {
 public:
  /// Takes `vocab_rows`, the number of rows of the model's embedding; all ids must be below it.
  /// `sequences` must outlive this reader.
  SequenceReader(const SequenceSet& sequences, int64_t vocab_rows);

  /// Sizes `batch` for `count` rows and fills it with padding, whose labels do not count.
  void reset(MicroBatch& batch, int64_t count) const;
  /// Writes a sequence of the data set to row `batch_row` of the batch. Throws Error(kBadInput)
  /// naming file, sequence, token, offset, value and limit if an id is outside the model's
  /// vocabulary.
  void fill(MicroBatch& batch, int64_t batch_row, int64_t sequence);
  /// Returns the number of labels of a sequence that count, without reading its tokens.
  int64_t count_labels(int64_t sequence) {
    return sequences_.table().count_labels(sequence, pieces_, pack_scratch_);
  }

 private:
  void fill_piece(MicroBatch& batch, size_t first, int64_t offset_in_row,
                  const DocumentPiece& piece);
  void check_ids(int64_t sequence, int64_t offset, const DocumentPiece& piece) const;
  [[noreturn]] void refuse_id(int64_t sequence, int64_t token_in_sequence, int64_t token,
                              int64_t value) const;

  const SequenceSet& sequences_;
  int64_t vocab_rows_;
  std::vector<DocumentPiece> pieces_;
  PackScratch pack_scratch_;
  ReadScratch read_scratch_;
  std::vector<int32_t> ids_, labels_;  // one piece and its last label: T+1
};

}  // namespace ftrun
