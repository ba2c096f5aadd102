#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/sample_set.h"
#include "data/sidecar.h"

namespace ftrun {

/// DataReport is what a reading of a whole data set found.
struct DataReport {
  /// Complete sentences that name file and place; the first 20, then how many more.
  std::vector<std::string> problems;
  DataStatistics statistics;
  /// Ids outside the model's rows.
  int64_t bad_ids = 0;
  /// Rows of the chosen packing and sequence length, and the share of their positions that is
  /// padding.
  int64_t rows = 0;
  double padding = 0;
  /// Documents longer than a row: split in several by kDocuments, cut by kNone. 0 under kConcat.
  int64_t long_documents = 0;
  /// Pieces that were left out for having no trained label.
  int64_t dropped_pieces = 0;
  SequencePacking packing = SequencePacking::kConcat;
  /// TokenDataset::notes().
  std::vector<std::string> notes;
  /// mix_lines() of data sets that are mixed.
  std::vector<std::string> mix;
  double seconds = 0;
};

/// Reads every token (for `ftrun check --data`). Damage that keeps the data from being opened is
/// reported as a problem too, as are fewer rows than `whole_batch`, what a training step needs
/// where what does not fill one is left out; nothing is thrown for bad data.
DataReport check_dataset(const std::vector<std::string>& paths, const SampleSetOptions& options,
                         int64_t vocab_rows, std::optional<int64_t> whole_batch = std::nullopt);

/// The report as lines for people.
std::string data_report_text(const DataReport& report);

/// DatasetFacts are names and values of what a data set is, a list for each of its files ("data
/// set" begins one).
using DatasetFacts = std::vector<std::pair<std::string, std::string>>;
/// Describes a data set (for `ftrun inspect`): format, sizes, documents and their lengths, mask,
/// first ids, recorded facts. Error(kBadInput) when it cannot be opened.
DatasetFacts dataset_facts(const std::string& path, const TokenFileOptions& options = {});
/// Writes the facts as lines for people.
std::string dataset_text(const DatasetFacts& facts);
/// Describes a data set as lines for people: the text of its facts.
std::string describe_dataset(const std::string& path, const TokenFileOptions& options = {});

}  // namespace ftrun
