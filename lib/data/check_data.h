#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/sample_set.h"
#include "data/sidecar.h"

namespace ftrun {

/// DataReport holds the findings of a reading of a whole data set.
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
/// reported as a problem, as are fewer rows than `whole_batch`, the rows that a training step needs
/// if incomplete batches are left out. Throws nothing for bad data.
DataReport check_dataset(const std::vector<std::string>& paths, const SampleSetOptions& options,
                         int64_t vocab_rows, std::optional<int64_t> whole_batch = std::nullopt);

/// Formats the report as lines for people.
std::string data_report_text(const DataReport& report);

/// DatasetFacts is a list of names and values that describe each file of a data set ("data set"
/// begins a file's list).
using DatasetFacts = std::vector<std::pair<std::string, std::string>>;
/// Describes a data set (for `ftrun inspect`): format, sizes, documents and their lengths, mask,
/// first ids, recorded facts. Error(kBadInput) when it cannot be opened.
DatasetFacts dataset_facts(const std::string& path, const TokenFileOptions& options = {});
/// Formats the facts as lines for people.
std::string dataset_text(const DatasetFacts& facts);
/// Describes a data set as lines for people: the text of its facts.
std::string describe_dataset(const std::string& path, const TokenFileOptions& options = {});

}  // namespace ftrun
