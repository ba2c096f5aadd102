#include "data/validation_reader.h"

#include <algorithm>

#include "base/error.h"

namespace ftrun {

ValidationReader::ValidationReader(const SampleSet& samples, int64_t sequences, int64_t micro_batch,
                                   int64_t ranks, int64_t rank, int64_t vocab_rows,
                                   int64_t micro_batches)
    : reader_(samples, vocab_rows),
      sequences_(sequences <= 0 ? samples.size() : std::min(sequences, samples.size())),
      micro_batch_(micro_batch),
      ranks_(ranks),
      rank_(rank),
      batches_(static_cast<size_t>(micro_batches)) {
  for (int64_t row = 0; row < sequences_; ++row) counted_ += reader_.count_labels(row);
}

int64_t ValidationReader::rounds() const {
  const int64_t together = static_cast<int64_t>(batches_.size()) * ranks_ * micro_batch_;
  return (sequences_ + together - 1) / together;
}

std::span<const Batch> ValidationReader::read(int64_t round) {
  require(round >= 0 && round < rounds(), "the validation round exists");
  int64_t first = (round * static_cast<int64_t>(batches_.size()) * ranks_ + rank_) * micro_batch_;
  for (Batch& batch : batches_) {
    reader_.start(batch, micro_batch_);
    for (int64_t m = 0; m < micro_batch_ && first + m < sequences_; ++m)
      reader_.fill(batch, m, first + m);
    first += ranks_ * micro_batch_;
  }
  return batches_;
}

}  // namespace ftrun
