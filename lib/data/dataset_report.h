#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/sequence_set.h"
#include "data/sidecar.h"

namespace ftrun {

/// DataReport holds the findings of reading a whole data set.
struct DataReport {
  /// Complete sentences that name file and position: the first 20, then the number of further ones.
  std::vector<std::string> problems;
  /// Says whether the problems themselves say what to do about them.
  bool has_remedy = false;
  DataStatistics statistics;
  /// The number of ids outside the model's vocabulary.
  int64_t bad_ids = 0;
  /// The number of sequences with the chosen packing and length, and the share of their positions
  /// that is padding.
  int64_t sequences = 0;
  double padding_share = 0;
  /// The number of documents longer than a sequence, which kDocuments splits and kNone cuts. 0
  /// under kConcat.
  int64_t long_documents = 0;
  /// The number of pieces that were left out because they have no trained label.
  int64_t dropped_pieces = 0;
  SequencePacking packing = SequencePacking::kConcat;
  /// The notices of the data set (TokenDataset::opening_notices()).
  std::vector<std::string> notices;
  /// The lines about data sets that are mixed (mix_lines()).
  std::vector<std::string> mix_lines;
  double seconds = 0;
};

/// Reads every token (for `ftrun check --data`). Bad data is reported and not thrown: damage that
/// prevents opening the data is a problem, and so is a set of fewer sequences than `whole_batch`,
/// which a training step needs if incomplete batches are left out.
DataReport check_dataset(const std::vector<std::string>& paths, const SequenceSetOptions& options,
                         int64_t vocab_rows, std::optional<int64_t> whole_batch = std::nullopt);

/// Formats the report as readable lines.
std::string data_report_text(const DataReport& report);

/// DatasetFacts is a list of (name, value) that describes each file of a data set; the name "data
/// set" begins a file's list.
using DatasetFacts = std::vector<std::pair<std::string, std::string>>;
/// Describes a data set (for `ftrun inspect`): format, sizes, documents and their lengths, mask,
/// first ids, recorded facts. Throws Error(kBadInput) if it cannot be opened.
DatasetFacts dataset_facts(const std::string& path, const TokenFileOptions& options = {});
/// Formats the facts as readable lines.
std::string dataset_text(const DatasetFacts& facts);
/// Describes a data set in readable lines: dataset_text() of dataset_facts().
std::string describe_dataset(const std::string& path, const TokenFileOptions& options = {});

}  // namespace ftrun
