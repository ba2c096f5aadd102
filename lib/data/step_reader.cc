#include "data/step_reader.h"

#include "base/error.h"

namespace ftrun {

StepReader::StepReader(const SampleSet& samples, const BatchSlots& shape, const MixedOrder& order,
                       int64_t vocab_rows)
    : samples_(samples), shape_(shape), order_(order), reader_(samples, vocab_rows) {
  require(order.rows() == samples.size(), "the order has as many rows as the data set");
}

void StepReader::read(int64_t step, StepBatch& out) {
  samples_.data().check_not_cut();
  out.step = step;
  out.counted_tokens_local = 0;
  out.micro_batches.resize(static_cast<size_t>(shape_.accumulation));
  for (int64_t slot = 0; slot < shape_.accumulation; ++slot) {
    Batch& batch = out.micro_batches[static_cast<size_t>(slot)];
    reader_.start(batch, shape_.micro_batch);
    batch.first_token = shape_.first_sample(0, slot) * samples_.sequence_length();
    for (int64_t m = 0; m < shape_.micro_batch; ++m)
      reader_.fill(batch, m, order_.row(shape_.first_sample(step, slot) + m));
    out.counted_tokens_local += batch.counted_tokens;
  }
  out.counted_tokens_global = out.counted_tokens_local + count_others(step);
  out.epoch = static_cast<double>((step + 1) * shape_.global_batch()) /
              static_cast<double>(order_.epoch_rows());
}

/// Counts the labels of the other ranks that count in the loss. Every rank computes this from masks
/// only, so the number of counted tokens of the global batch, by which the loss is divided, is
/// known before the first forward pass, without a collective.
int64_t StepReader::count_others(int64_t step) {
  const bool uniform =
      samples_.data().all_trained() && samples_.rows().packing() == SequencePacking::kConcat;
  const int64_t other_rows = shape_.global_batch() - shape_.micro_batch * shape_.accumulation;
  if (uniform) return other_rows * samples_.sequence_length();
  int64_t total = 0;
  BatchSlots other = shape_;
  for (other.rank = 0; other.rank < shape_.ranks; ++other.rank) {
    if (other.rank == shape_.rank) continue;
    for (int64_t slot = 0; slot < shape_.accumulation; ++slot)
      for (int64_t m = 0; m < shape_.micro_batch; ++m)
        total += reader_.count_labels(order_.row(other.first_sample(step, slot) + m));
  }
  return total;
}

}  // namespace ftrun
