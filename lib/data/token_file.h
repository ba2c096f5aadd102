#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/data_format.h"
#include "base/dtype.h"
#include "base/file.h"
#include "data/loss_mask.h"

namespace ftrun {

/// The label of a position that does not count in the loss, as in Hugging Face data sets.
constexpr int32_t kIgnoredLabel = -100;

/// TokenLocation specifies where a token is and which id the file holds there, for messages.
struct TokenLocation {
  std::string file;
  /// The offset in bytes in the file (of the line's first byte in JSONL).
  int64_t offset = 0;
  /// The line of a JSONL file, from 1; 0 in binary files.
  int64_t line = 0;
  /// The id in the file, even if it does not fit 32 bits.
  int64_t value = 0;
};

/// DataSetFile is one file of a data set and its role: "tokens", "index", "mask" or "jsonl".
struct DataSetFile {
  std::string role;
  std::string path;
};

/// ReadScratch holds data that a reader keeps between two reads: the last line of a JSONL file,
/// parsed. Each thread needs its own.
struct ReadScratch {
  const void* file = nullptr;
  int64_t document = -1;
  std::vector<int32_t> ids, labels;
};

/// TokenFile is a file of tokens, read as one stream that is cut into documents. It is immutable
/// after opening, so any number of threads may read it. Files are mapped, never copied.
class TokenFile {
 public:
  virtual ~TokenFile() = default;

  const std::string& path() const { return path_; }
  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  const LossMask& loss_mask() const { return loss_mask_; }

  /// Returns the name of the format: "Megatron .bin/.idx, uint16".
  virtual std::string format() const = 0;
  virtual std::vector<DataSetFile> list_files() const = 0;
  /// Returns the first token of document d; for d = documents() it returns tokens().
  virtual int64_t document_start(int64_t d) const = 0;
  /// Reads ids[i] = token first+i, labels[i] = the same id if it is trained on (the file's own
  /// label in JSONL), else kIgnoredLabel. Labels are not shifted. Ids outside 0..2^31-1 are
  /// returned as -1. Both spans have the same length and lie inside the stream.
  virtual void read(int64_t first, std::span<int32_t> ids, std::span<int32_t> labels,
                    ReadScratch& scratch) const = 0;
  virtual TokenLocation locate(int64_t token) const = 0;
  /// Returns the maximum number of ids that a ReadScratch may hold.
  virtual int64_t scratch_ids() const { return 0; }
  /// Lists findings from opening the file that do not stop training, one sentence each.
  virtual std::vector<std::string> opening_notices() const { return {}; }
  /// Throws Error(kBadInput) for a file that has become shorter since it was opened: reading the
  /// lost pages would kill the process with SIGBUS.
  virtual void check_not_truncated() const = 0;

 protected:
  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
  int64_t tokens_ = 0;
  int64_t documents_ = 0;
  LossMask loss_mask_;
};

struct TokenFileOptions {
  /// The format of the file. kAuto detects it by name and content; the others refuse a file of
  /// another format.
  DataFormat format = DataFormat::kAuto;
  /// The element type of a raw .bin file; by default the one recorded in the .json next to it.
  std::optional<DType> dtype;
  /// The id that ends each document of a file without boundaries; by default the one recorded in
  /// the .json.
  std::optional<int32_t> end_of_document;
  /// Says whether document boundaries are needed; a raw .bin file is then searched for
  /// end_of_document.
  bool find_documents = false;
};

/// Opens Megatron .bin/.idx files (by either name or by prefix), llm.c .bin, raw .bin and .jsonl
/// files, with the loss mask next to them if there is one. Every size and header is checked against
/// the files. Throws Error(kBadInput) naming file and offset.
std::unique_ptr<TokenFile> open_token_file(const std::string& path,
                                           const TokenFileOptions& options);

/// Throws an error for a file that is now shorter than its mapping.
void check_mapping_not_truncated(const MappedFile& file);

}  // namespace ftrun
