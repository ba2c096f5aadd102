#include "data/validation_reader.h"

#include <algorithm>

#include "base/error.h"
#include "base/round_up.h"

namespace ftrun {

ValidationReader::ValidationReader(const SequenceSet& set, int64_t sequences,
                                   int64_t micro_batch_size, int64_t ranks, int64_t rank,
                                   int64_t vocab_rows, int64_t micro_batches)
    : reader_(set, vocab_rows),
      sequences_(sequences <= 0 ? set.size() : std::min(sequences, set.size())),
      micro_batch_size_(micro_batch_size),
      ranks_(ranks),
      rank_(rank),
      batches_(static_cast<size_t>(micro_batches)) {
  for (int64_t sequence = 0; sequence < sequences_; ++sequence)
    counted_tokens_ += reader_.count_labels(sequence);
}

int64_t ValidationReader::passes() const {
  const int64_t sequences_of_pass =
      static_cast<int64_t>(batches_.size()) * ranks_ * micro_batch_size_;
  return divide_up(sequences_, sequences_of_pass);
}

std::span<const MicroBatch> ValidationReader::read(int64_t pass) {
  require(pass >= 0 && pass < passes(), "the validation pass exists");
  int64_t first =
      (pass * static_cast<int64_t>(batches_.size()) * ranks_ + rank_) * micro_batch_size_;
  for (MicroBatch& batch : batches_) {
    reader_.reset(batch, micro_batch_size_);
    for (int64_t row = 0; row < micro_batch_size_ && first + row < sequences_; ++row)
      reader_.fill(batch, row, first + row);
    first += ranks_ * micro_batch_size_;
  }
  return batches_;
}

}  // namespace ftrun
