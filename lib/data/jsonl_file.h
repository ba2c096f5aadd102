#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/jsonl_line.h"
#include "data/token_file.h"

namespace ftrun {

/// JsonlFile is a JSONL data set: each line that is not blank is a document (see jsonl_line.h). The
/// file is read once when it is opened, to check every line and to record where lines begin and
/// which tokens are trained (about 16 bytes per line and one bit per token); ids stay in the file.
class JsonlFile : public TokenFile {
 public:
  explicit JsonlFile(const std::string& path);

  std::string format() const override { return "JSONL of input_ids"; }
  std::vector<DataSetFile> list_files() const override { return {{"jsonl", path_}}; }
  int64_t document_start(int64_t d) const override { return starts_[static_cast<size_t>(d)]; }
  void read(int64_t first, std::span<int32_t> ids, std::span<int32_t> labels,
            ReadScratch& scratch) const override;
  TokenLocation locate(int64_t token) const override;
  int64_t scratch_ids() const override { return longest_line_; }
  std::vector<std::string> opening_notices() const override;
  void check_not_truncated() const override { check_mapping_not_truncated(file_); }

 private:
  std::string_view text() const;
  std::string_view line_at(int64_t offset) const;
  void index_lines();
  void add_line(const ReadScratch& line, int64_t offset);
  int64_t find_document(int64_t token) const;
  void load_line(int64_t document, ReadScratch& scratch) const;

  MappedFile file_;
  int64_t longest_line_ = 0;      // ids of a line, padding included
  std::vector<int64_t> offsets_;  // first byte of each document's line
  std::vector<int64_t> starts_;   // first token of each document, then the number of tokens
  std::vector<std::byte> trained_bits_;  // see LossMask
  UnreadFields unread_;
};

}  // namespace ftrun
