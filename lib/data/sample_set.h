#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/data_format.h"
#include "base/sequence_packing.h"
#include "data/batch.h"
#include "data/packing.h"
#include "data/sample_order.h"
#include "data/token_dataset.h"

namespace ftrun {

struct SampleSetOptions {
  /// The number of positions of a row, T.
  int64_t sequence_length = 512;
  /// The number of padding positions after them.
  int64_t row_padding = 0;
  SequencePacking packing = SequencePacking::kConcat;
  /// Element type of raw .bin files; by default what the .json beside them says.
  std::optional<DType> dtype;
  /// The format of the files; kAuto detects it by name and content.
  DataFormat format = DataFormat::kAuto;
  /// The weight of each path, when these are data sets that are mixed; empty: one stream.
  std::vector<double> weights;
  /// Id that ends a document in files without boundaries; by default what the .json says.
  std::optional<int32_t> end_of_document;
};

/// SampleSet is a data set cut into rows of a fixed length. It is immutable; any number of threads
/// may read it.
class SampleSet {
 public:
  /// Opens the files (see TokenDataset). Refuses data that is damaged, too short for one row, or
  /// without a label that counts, with Error(kBadInput).
  SampleSet(const std::vector<std::string>& paths, const SampleSetOptions& options);
  SampleSet(const SampleSet&) = delete;
  SampleSet& operator=(const SampleSet&) = delete;

  const TokenDataset& data() const { return data_; }
  const RowTable& rows() const { return rows_; }
  int64_t size() const { return rows_.size(); }
  int64_t sequence_length() const { return rows_.sequence_length(); }
  /// Returns the number of positions of a row in a batch: T and the padding after them.
  int64_t row_positions() const { return sequence_length() + row_padding_; }
  /// Returns the rows of each data set of a mix, and how many of them an epoch uses: all rows of
  /// the set with the most trained tokens, and of each other set as many as make its share of the
  /// trained tokens match its weight. The list is empty if nothing is mixed.
  const std::vector<MixedRows>& mix() const { return mix_; }
  /// Returns the number of trained tokens in the rows of each set, in the order of mix().
  const std::vector<int64_t>& mix_tokens() const { return mix_tokens_; }
  /// Returns the order of the set's rows.
  MixedOrder order(bool shuffle, uint64_t seed, int64_t epoch_rows) const;
  /// Returns the number of rows that one epoch uses: all, or with `drop_last` as many as fill whole
  /// global batches. Throws Error(kBadInput) when there are none.
  int64_t epoch_rows(int64_t global_batch, bool drop_last) const;
  /// Returns the number of optimizer steps that make `epochs` passes (rounded up to whole steps).
  int64_t steps_for_epochs(double epochs, int64_t global_batch, bool drop_last = false) const;

 private:
  void refuse_unusable() const;
  void count_mix(const std::vector<double>& weights);
  TokenDataset data_;
  RowTable rows_;
  int64_t row_padding_;
  std::vector<MixedRows> mix_;
  std::vector<int64_t> mix_tokens_;
};

/// Lists a line for each data set of a mix: its share of the tokens that are trained on, and how
/// often an epoch sees it. Empty if nothing is mixed.
std::vector<std::string> mix_lines(const SampleSet& samples);

/// RowReader fills batches from a SampleSet. It keeps buffers between calls and allocates nothing
/// once they are warm. Each thread needs its own.
class RowReader {
 public:
  /// Takes `vocab_rows`, the number of rows of the model's embedding; all ids must be below it.
  /// `samples` must outlive this reader.
  RowReader(const SampleSet& samples, int64_t vocab_rows);

  /// Sizes `batch` for `count` rows and fills it with padding, whose labels do not count.
  void start(Batch& batch, int64_t count) const;
  /// Writes row `row` of the data set to row `batch_row` of the batch. Throws Error(kBadInput)
  /// naming file, row, token, offset, value and limit when an id is outside the model's rows.
  void fill(Batch& batch, int64_t batch_row, int64_t row);
  /// Returns the number of labels of a row that count, without reading its tokens.
  int64_t counted(int64_t row) { return samples_.rows().counted(row, pieces_, pack_scratch_); }

 private:
  void fill_piece(Batch& batch, size_t batch_position, int64_t row_slot, const Piece& piece);
  void check_ids(int64_t row, int64_t row_slot, const Piece& piece) const;
  [[noreturn]] void refuse_id(int64_t row, int64_t token_in_row, int64_t token,
                              int64_t value) const;

  const SampleSet& samples_;
  int64_t vocab_rows_;
  std::vector<Piece> pieces_;
  PackScratch pack_scratch_;
  ReadScratch read_scratch_;
  std::vector<int32_t> ids_, labels_;  // one piece and its last label: T+1
};

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

/// ValidationReader distributes the first N rows of a validation set, in file order, over ranks and
/// micro-batches so that every rank makes the same number of passes; slots without a row are
/// padding, whose labels do not count.
class ValidationReader {
 public:
  /// Uses min(sequences, samples.size()) rows (0: all); a pass has `micro_batches` batches of
  /// `micro_batch` rows. `samples` must outlive this reader.
  ValidationReader(const SampleSet& samples, int64_t sequences, int64_t micro_batch, int64_t ranks,
                   int64_t rank, int64_t vocab_rows, int64_t micro_batches = 1);

  int64_t sequences() const { return sequences_; }
  /// Returns the number of passes that each rank makes.
  int64_t rounds() const;
  /// Returns the number of labels that count in all sequences: the loss is the sum over all ranks
  /// and rounds divided by this number.
  int64_t counted_tokens_global() const { return counted_; }
  /// Reads the batches of pass `round`, valid until the next call. Slots without a row have no
  /// label that counts.
  std::span<const Batch> read(int64_t round);

 private:
  RowReader reader_;
  int64_t sequences_, micro_batch_, ranks_, rank_;
  int64_t counted_ = 0;
  std::vector<Batch> batches_;
};

}  // namespace ftrun
