#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/data_format.h"
#include "base/sequence_packing.h"
#include "data/packing.h"
#include "data/sequence_order.h"
#include "data/token_dataset.h"

namespace ftrun {

struct SequenceSetOptions {
  /// The number of positions of a sequence, T.
  int64_t sequence_length = 512;
  /// The number of padding positions after these.
  int64_t sequence_padding = 0;
  SequencePacking packing = SequencePacking::kConcat;
  /// The element type of raw .bin files; by default the one recorded in the .json next to them.
  std::optional<DType> dtype;
  /// The format of the files; kAuto detects it by name and content.
  DataFormat format = DataFormat::kAuto;
  /// The weights of the paths if these are data sets that are mixed; empty: one stream.
  std::vector<double> weights;
  /// The id that ends a document in files without boundaries; by default the one recorded in the
  /// .json.
  std::optional<int32_t> end_of_document;
};

/// Returns the options with which the headers of the set's files are read (check_headers()).
TokenFileOptions header_options(const SequenceSetOptions& options);

/// SequenceSet is a data set cut into sequences of a fixed length. It is immutable; any number of
/// threads may read it.
class SequenceSet {
 public:
  /// Opens the files (see TokenDataset). Throws Error(kBadInput) for data that is damaged, too
  /// short for one sequence, or without a label that counts.
  SequenceSet(const std::vector<std::string>& paths, const SequenceSetOptions& options);
  SequenceSet(const SequenceSet&) = delete;
  SequenceSet& operator=(const SequenceSet&) = delete;

  const TokenDataset& data() const { return data_; }
  const SequenceTable& table() const { return table_; }
  int64_t size() const { return table_.size(); }
  int64_t sequence_length() const { return table_.sequence_length(); }
  /// Returns the number of positions of a sequence in a batch: T and the padding after them.
  int64_t padded_length() const { return sequence_length() + sequence_padding_; }
  /// Returns the sequences of each data set of a mix, and how many of them an epoch uses: all of
  /// the set with the most trained tokens, and of each other set as many as make its share of the
  /// trained tokens match its weight. The list is empty if nothing is mixed.
  const std::vector<MixedDataSet>& mixed_sets() const { return mixed_sets_; }
  /// Returns the number of trained tokens in the sequences of each set, in the order of
  /// mixed_sets().
  const std::vector<int64_t>& trained_tokens_of_sets() const { return trained_tokens_of_sets_; }
  /// Makes the order in which the sequences are used.
  MixedOrder make_order(bool shuffle, uint64_t seed, int64_t epoch_sequences) const;
  /// Returns the number of sequences that one epoch uses: all, or with `drop_last` as many as fill
  /// whole global batches. Throws Error(kBadInput) if there are none.
  int64_t epoch_sequences(int64_t global_batch, bool drop_last) const;
  /// Returns the number of optimizer steps that make `epochs` passes (rounded up to whole steps).
  int64_t steps_for_epochs(double epochs, int64_t global_batch, bool drop_last = false) const;

 private:
  void refuse_unusable() const;
  void count_epoch_sequences(const std::vector<double>& weights);
  TokenDataset data_;
  SequenceTable table_;
  int64_t sequence_padding_;
  std::vector<MixedDataSet> mixed_sets_;
  std::vector<int64_t> trained_tokens_of_sets_;
};

/// Lists a line for each data set of a mix: its share of the tokens that are trained on, and how
/// often an epoch sees it. Empty if nothing is mixed.
std::vector<std::string> mix_lines(const SequenceSet& sequences);

}  // namespace ftrun
