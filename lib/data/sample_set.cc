#include "data/sample_set.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

TokenFileOptions file_options(const SampleSetOptions& options) {
  return {.format = options.format,
          .dtype = options.dtype,
          .end_of_document = options.end_of_document,
          .find_documents = options.packing != SequencePacking::kConcat};
}

int64_t checked_length(const SampleSetOptions& options) {
  if (options.sequence_length < 1 || options.sequence_length > (int64_t{1} << 30))
    throw Error(ExitCode::kUsage,
                cat("data.sequence_length is ", options.sequence_length, ", expected 1 to 2^30"),
                "set it to the number of tokens a row shall have, such as 2048");
  return options.sequence_length;
}

}  // namespace

SampleSet::SampleSet(const std::vector<std::string>& paths, const SampleSetOptions& options)
    : data_(paths, file_options(options)),
      rows_(data_, options.packing, checked_length(options), !options.weights.empty()),
      row_padding_(options.row_padding) {
  require(options.weights.empty() || options.weights.size() == paths.size(),
          "there is a weight for each data set");
  refuse_unusable();
  if (!options.weights.empty()) count_mix(options.weights);
}

/// Counts the rows that an epoch takes of each set. The set with the most trained tokens, T of them
/// in R rows, is seen once; set i gives T * weight_i / weight of these tokens, in rows that hold
/// T_i / R_i.
void SampleSet::count_mix(const std::vector<double>& weights) {
  std::vector<Piece> pieces;
  PackScratch scratch;
  const std::vector<int64_t>& begins = rows_.set_rows();
  for (size_t set = 0; set < weights.size(); ++set) {
    int64_t tokens = 0;
    for (int64_t row = begins[set]; row < begins[set + 1]; ++row)
      tokens += rows_.counted(row, pieces, scratch);
    if (tokens == 0) {
      const int64_t held = data_.path_tokens()[set + 1] - data_.path_tokens()[set];
      throw Error(ExitCode::kBadInput,
                  cat("data set ", set + 1, " of the ", weights.size(),
                      " in data.train has nothing to train on: ", held, " tokens make ",
                      begins[set + 1] - begins[set], " rows of ", sequence_length(),
                      ", and no label of them counts"),
                  "take it out of data.train, lower data.sequence_length, or write it again with "
                  "answers trained on");
    }
    mix_tokens_.push_back(tokens);
    mix_.push_back({begins[set + 1] - begins[set], 0});
  }
  const auto largest = static_cast<size_t>(
      std::max_element(mix_tokens_.begin(), mix_tokens_.end()) - mix_tokens_.begin());
  for (size_t set = 0; set < weights.size(); ++set) {
    const double tokens =
        static_cast<double>(mix_tokens_[largest]) * (weights[set] / weights[largest]);
    const double rows =
        tokens * static_cast<double>(mix_[set].rows) / static_cast<double>(mix_tokens_[set]);
    if (rows > 1e12)
      throw Error(ExitCode::kUsage,
                  cat("the weight ", number_text(weights[set]), " of data set ", set + 1,
                      " in data.train, beside ", number_text(weights[largest]),
                      " of the largest, makes an epoch of ", number_text(rows), " rows"),
                  "give the largest data set more weight");
    mix_[set].taken = set == largest ? mix_[set].rows : std::max<int64_t>(std::llround(rows), 1);
  }
}

MixedOrder SampleSet::order(bool shuffle, uint64_t seed, int64_t epoch_rows) const {
  if (mix_.empty()) return SampleOrder(size(), shuffle, seed, epoch_rows);
  return {mix_, shuffle, seed, epoch_rows};
}

/// Refuses data without a label that counts. Cheap: stops at the first row that has one.
void SampleSet::refuse_unusable() const {
  const int64_t length = sequence_length();
  const bool concat = rows_.packing() == SequencePacking::kConcat;
  if (concat && size() == 0)
    throw Error(ExitCode::kBadInput,
                cat(data_.name(), ": has ", data_.tokens(), " tokens; one row of sequence length ",
                    length, " needs ", length + 1),
                "lower data.sequence_length, or use more text");
  std::vector<Piece> pieces;
  PackScratch scratch;
  for (int64_t row = 0; row < size(); ++row)
    if (rows_.counted(row, pieces, scratch) > 0) return;
  throw Error(
      ExitCode::kBadInput,
      cat(data_.name(), ": none of its ", data_.tokens(),
          " tokens counts in the loss: there is nothing to train on"),
      data_.all_trained()
          ? "documents need at least two tokens each; write the data again"
          : "every label is masked; write the data again with prompts masked but answers not");
}

int64_t SampleSet::epoch_rows(int64_t global_batch, bool drop_last) const {
  require(global_batch >= 1, "the global batch is at least 1");
  int64_t rows = mix_.empty() ? size() : 0;
  for (const MixedRows& set : mix_) rows += set.taken;
  if (!drop_last) return rows;
  if (rows < global_batch)
    throw Error(ExitCode::kBadInput,
                cat(data_.name(), ": gives ", rows, " rows, fewer than one global batch of ",
                    global_batch, ", and dataloader_drop_last leaves out what does not fill one"),
                "set dataloader_drop_last to false, use a smaller batch, or use more text");
  return rows - rows % global_batch;
}

int64_t SampleSet::steps_for_epochs(double epochs, int64_t global_batch, bool drop_last) const {
  const auto rows = static_cast<double>(epoch_rows(global_batch, drop_last));
  return static_cast<int64_t>(std::ceil(epochs * rows / static_cast<double>(global_batch)));
}

std::vector<std::string> mix_lines(const SampleSet& samples) {
  const std::vector<MixedRows>& mix = samples.mix();
  std::vector<double> tokens;
  for (size_t set = 0; set < mix.size(); ++set)
    tokens.push_back(static_cast<double>(samples.mix_tokens()[set]) *
                     static_cast<double>(mix[set].taken) / static_cast<double>(mix[set].rows));
  const double all = std::accumulate(tokens.begin(), tokens.end(), 0.0);
  std::vector<std::string> lines;
  for (size_t set = 0; set < mix.size(); ++set)
    lines.push_back(cat("data set ", set + 1, " of ", mix.size(), ": ",
                        number_text(std::round(1000 * tokens[set] / all) / 10),
                        "% of the tokens trained on, seen ",
                        number_text(std::round(100.0 * static_cast<double>(mix[set].taken) /
                                               static_cast<double>(mix[set].rows)) /
                                    100),
                        " times an epoch"));
  return lines;
}

RowReader::RowReader(const SampleSet& samples, int64_t vocab_rows)
    : samples_(samples), vocab_rows_(vocab_rows) {
  const auto needed = static_cast<size_t>(samples.sequence_length() + 1);
  ids_.resize(needed);
  labels_.resize(needed);
  samples.rows().reserve(pieces_, pack_scratch_);
  for (const auto& file : samples.data().files()) {
    read_scratch_.ids.reserve(static_cast<size_t>(file->scratch_ids()));
    read_scratch_.labels.reserve(static_cast<size_t>(file->scratch_ids()));
  }
}

void RowReader::start(Batch& batch, int64_t count) const {
  const int64_t length = samples_.row_positions();
  const auto size = static_cast<size_t>(count * length);
  batch.tokens.assign(size, 0);
  batch.labels.assign(size, kIgnoredLabel);
  batch.positions.assign(size, 0);
  batch.starts.resize(size);
  for (size_t i = 0; i < size; ++i)
    batch.starts[i] = static_cast<int32_t>(i % static_cast<size_t>(length));
  batch.counted_tokens = 0;
}

void RowReader::fill(Batch& batch, int64_t batch_row, int64_t row) {
  samples_.rows().pieces(row, pieces_, pack_scratch_);
  const int64_t first = batch_row * samples_.row_positions();
  int64_t slot = 0;
  for (const Piece& piece : pieces_) {
    const auto count = static_cast<size_t>(piece.length + 1);
    samples_.data().read(piece.first_token, std::span(ids_).first(count),
                         std::span(labels_).first(count), read_scratch_);
    check_ids(row, slot, piece);
    fill_piece(batch, static_cast<size_t>(first + slot), slot, piece);
    slot += piece.length;
  }
}

void RowReader::fill_piece(Batch& batch, size_t batch_position, int64_t row_slot,
                           const Piece& piece) {
  const auto length = static_cast<size_t>(piece.length);
  for (size_t i = 0; i < length; ++i) {
    batch.tokens[batch_position + i] = ids_[i];
    batch.labels[batch_position + i] = labels_[i + 1];
    batch.positions[batch_position + i] = static_cast<int32_t>(i);
    batch.starts[batch_position + i] = static_cast<int32_t>(row_slot);
    batch.counted_tokens += labels_[i + 1] == kIgnoredLabel ? 0 : 1;
  }
}

void RowReader::check_ids(int64_t row, int64_t row_slot, const Piece& piece) const {
  const auto limit = static_cast<uint32_t>(std::min<int64_t>(vocab_rows_, INT32_MAX));
  for (int64_t i = 0; i <= piece.length; ++i) {
    const int32_t id = ids_[static_cast<size_t>(i)], label = labels_[static_cast<size_t>(i)];
    if (static_cast<uint32_t>(id) >= limit)
      refuse_id(row, row_slot + i, piece.first_token + i,
                samples_.data().place(piece.first_token + i).value);
    if (label != kIgnoredLabel && static_cast<uint32_t>(label) >= limit)
      refuse_id(row, row_slot + i, piece.first_token + i, label);
  }
}

void RowReader::refuse_id(int64_t row, int64_t token_in_row, int64_t token, int64_t value) const {
  const TokenPlace place = samples_.data().place(token);
  const std::string line = place.line > 0 ? cat("line ", place.line, ", ") : "";
  throw Error(
      ExitCode::kBadInput,
      cat(place.file, ": sample ", row, ", token ", token_in_row, " (", line, "file offset ",
          place.offset, "): id ", value, " is outside the model's ", vocab_rows_, " rows"),
      "prepare the data with this model's own tokenizer");
}

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

/// Counts the labels that count on the other ranks. Every rank computes this from masks only, so
/// the loss scale is known before the first forward pass without a collective.
int64_t StepReader::count_others(int64_t step) {
  const bool uniform =
      samples_.data().all_trained() && samples_.rows().packing() == SequencePacking::kConcat;
  const int64_t others = shape_.global_batch() - shape_.micro_batch * shape_.accumulation;
  if (uniform) return others * samples_.sequence_length();
  int64_t total = 0;
  BatchSlots other = shape_;
  for (other.rank = 0; other.rank < shape_.ranks; ++other.rank) {
    if (other.rank == shape_.rank) continue;
    for (int64_t slot = 0; slot < shape_.accumulation; ++slot)
      for (int64_t m = 0; m < shape_.micro_batch; ++m)
        total += reader_.counted(order_.row(other.first_sample(step, slot) + m));
  }
  return total;
}

ValidationReader::ValidationReader(const SampleSet& samples, int64_t sequences, int64_t micro_batch,
                                   int64_t ranks, int64_t rank, int64_t vocab_rows,
                                   int64_t micro_batches)
    : reader_(samples, vocab_rows),
      sequences_(sequences <= 0 ? samples.size() : std::min(sequences, samples.size())),
      micro_batch_(micro_batch),
      ranks_(ranks),
      rank_(rank),
      batches_(static_cast<size_t>(micro_batches)) {
  for (int64_t row = 0; row < sequences_; ++row) counted_ += reader_.counted(row);
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
