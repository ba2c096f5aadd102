#include "data/step_reader.h"

#include "base/error.h"

namespace ftrun {

StepReader::StepReader(const SequenceSet& sequences, const BatchLayout& layout, int64_t rank,
                       const MixedOrder& order, int64_t vocab_rows)
    : sequences_(sequences),
      layout_(layout),
      rank_(rank),
      order_(order),
      reader_(sequences, vocab_rows) {
  require(order.sequences() == sequences.size(), "the order has as many sequences as the data set");
}

void StepReader::read(int64_t step, StepBatch& out) {
  sequences_.data().check_not_truncated();
  out.step = step;
  out.counted_tokens_local = 0;
  out.micro_batches.resize(static_cast<size_t>(layout_.micro_batches));
  for (int64_t micro_batch = 0; micro_batch < layout_.micro_batches; ++micro_batch) {
    MicroBatch& batch = out.micro_batches[static_cast<size_t>(micro_batch)];
    reader_.reset(batch, layout_.micro_batch_size);
    batch.first_token =
        layout_.first_sequence(0, micro_batch, rank_) * sequences_.sequence_length();
    const int64_t first = layout_.first_sequence(step, micro_batch, rank_);
    for (int64_t row = 0; row < layout_.micro_batch_size; ++row)
      reader_.fill(batch, row, order_.sequence_at(first + row));
    out.counted_tokens_local += batch.counted_tokens;
  }
  out.counted_tokens_global = out.counted_tokens_local + count_labels_of_others(step);
  out.epoch = static_cast<double>((step + 1) * layout_.global_batch()) /
              static_cast<double>(order_.epoch_sequences());
}

/// Counts the labels of the other ranks that count in the loss. Every rank computes this from masks
/// only, so the number of counted tokens of the global batch, by which the loss is divided, is
/// known before the first forward pass, without a collective.
int64_t StepReader::count_labels_of_others(int64_t step) {
  const bool all_count =
      sequences_.data().all_trained() && sequences_.table().packing() == SequencePacking::kConcat;
  const int64_t other_sequences =
      layout_.global_batch() - layout_.micro_batch_size * layout_.micro_batches;
  if (all_count) return other_sequences * sequences_.sequence_length();
  int64_t total = 0;
  for (int64_t rank = 0; rank < layout_.ranks; ++rank) {
    if (rank == rank_) continue;
    for (int64_t micro_batch = 0; micro_batch < layout_.micro_batches; ++micro_batch) {
      const int64_t first = layout_.first_sequence(step, micro_batch, rank);
      for (int64_t row = 0; row < layout_.micro_batch_size; ++row)
        total += reader_.count_labels(order_.sequence_at(first + row));
    }
  }
  return total;
}

}  // namespace ftrun
