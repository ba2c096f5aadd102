#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace ftrun {

/// DataStatistics holds counts over all tokens of a data set.
struct DataStatistics {
  int64_t tokens = 0;
  int64_t documents = 0;
  /// The number of tokens that count as labels.
  int64_t trained_tokens = 0;
  /// The smallest and the largest id; 0 and -1 if there is no token.
  int64_t min_id = 0;
  int64_t max_id = -1;
};

/// FileRecord is one file of a data set as it was when it was hashed.
struct FileRecord {
  std::string role;
  std::string path;
  int64_t bytes = 0;
  /// The time of the last modification, in nanoseconds since 1970.
  int64_t modified_ns = 0;
  uint64_t xxh3 = 0;
};

/// Sidecar is the file <prefix>.json that scripts/prepare_data.py writes next to a data file
/// (docs/data.md).
struct Sidecar {
  std::string path;
  std::optional<DType> dtype;
  std::optional<int32_t> end_of_document;
  std::optional<int64_t> vocab_size;
  DataStatistics statistics;
  /// The number of documents that are chats, or prompts with their answers; nothing if they were
  /// not counted.
  std::optional<int64_t> conversations;
  /// The number of tokens of the longest conversation; nothing if not recorded.
  std::optional<int64_t> longest_conversation;
  std::vector<FileRecord> files;
};

/// Reads <stem>.json if prepare_data.py wrote it. Any other file of that name is ignored, and a
/// large one (usually raw data) is not even read unless it begins like a sidecar. Throws
/// Error(kBadInput) if the file is a sidecar but damaged, or too large for one.
std::optional<Sidecar> read_sidecar(const std::string& data_file);

/// Reads the same facts from `path`, which need not be next to the data (a cached fingerprint);
/// returns nothing for a file of more than `max_bytes` bytes.
std::optional<Sidecar> read_sidecar_file(const std::string& path, int64_t max_bytes);
std::string sidecar_text(const Sidecar& sidecar);

/// FlatFileInfo holds dtype and end of document of a flat .bin file, from <stem>.json, else from
/// meta.json next to it (keys dtype, eos). `origin` is the file that gave them, "" if none did.
struct FlatFileInfo {
  std::optional<DType> dtype;
  std::optional<int32_t> end_of_document;
  std::string origin;
};
FlatFileInfo read_flat_file_info(const std::string& data_file);

}  // namespace ftrun
