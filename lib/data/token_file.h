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

/// Label of a position that does not count in the loss, as in Hugging Face data sets.
constexpr int32_t kIgnoredLabel = -100;

/// TokenPlace says where a token lies and which id the file has there, for messages.
struct TokenPlace {
  std::string file;
  /// Byte in the file (of the line's first byte in JSONL).
  int64_t offset = 0;
  /// Line of a JSONL file, from 1; 0 in binary files.
  int64_t line = 0;
  /// The id as it is in the file, even where it does not fit 32 bits.
  int64_t value = 0;
};

/// DataPart is one file of a data set and its role: "tokens", "index", "mask" or "jsonl".
struct DataPart {
  std::string role;
  std::string path;
};

/// ReadScratch holds what a reader may keep between two reads: the last line of a JSONL file,
/// parsed. One a thread.
struct ReadScratch {
  const void* file = nullptr;
  int64_t document = -1;
  std::vector<int32_t> ids, labels;
};

/// TokenFile is a file of tokens seen as one stream, cut into documents. Immutable after opening,
/// so any number of threads may read. Files are mapped, never copied.
class TokenFile {
 public:
  virtual ~TokenFile() = default;

  const std::string& path() const { return path_; }
  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  const TrainedBits& trained() const { return trained_; }

  /// Names the format: "Megatron .bin/.idx, uint16".
  virtual std::string format() const = 0;
  virtual std::vector<DataPart> parts() const = 0;
  /// Returns the first token of document d; documents() gives tokens().
  virtual int64_t document_start(int64_t d) const = 0;
  /// Reads ids[i] = token first+i, labels[i] = the same id if it is trained on (the file's own
  /// label in JSONL), else kIgnoredLabel. Not shifted. Ids outside 0..2^31-1 become -1. Both spans
  /// are of one length, inside the stream.
  virtual void read(int64_t first, std::span<int32_t> ids, std::span<int32_t> labels,
                    ReadScratch& scratch) const = 0;
  virtual TokenPlace place(int64_t token) const = 0;
  /// Returns the most ids that a ReadScratch may hold.
  virtual int64_t scratch_ids() const { return 0; }
  /// Lists findings of opening the file that do not stop training, a sentence each.
  virtual std::vector<std::string> notes() const { return {}; }
  /// Refuses a file that was cut short since it was opened, with Error(kBadInput): touching the
  /// lost pages would end the process with SIGBUS.
  virtual void check_not_cut() const = 0;

 protected:
  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
  int64_t tokens_ = 0;
  int64_t documents_ = 0;
  TrainedBits trained_;
};

struct TokenFileOptions {
  /// kAuto looks at name and content; the others refuse a file of another kind.
  DataFormat format = DataFormat::kAuto;
  /// Element type of a raw .bin file; by default what the .json beside it says.
  std::optional<DType> dtype;
  /// Id that ends each document of a file without boundaries; by default what the .json says.
  std::optional<int32_t> end_of_document;
  /// Document boundaries are needed: a raw .bin file is then scanned for end_of_document.
  bool find_documents = false;
};

/// Opens Megatron .bin/.idx (by either name or by prefix), llm.c .bin, raw .bin and .jsonl files,
/// with the loss mask beside it if there is one. Every size and header is checked against the
/// files. Error(kBadInput) names file and offset.
std::unique_ptr<TokenFile> open_token_file(const std::string& path,
                                           const TokenFileOptions& options);

/// Refuses a file that is now shorter than its mapping.
void check_mapping_not_cut(const MappedFile& file);

}  // namespace ftrun
