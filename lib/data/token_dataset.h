#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace ftrun {

/// Lists the files that a name in data.train means. An existing file or prefix means itself,
/// whatever characters it contains, and so does each existing folder in the name. A file of a data
/// set of the Hugging Face Hub ("owner/name@commit/train") is found in the local cache. The parts
/// of a name that do not exist are patterns if they contain * ? [ ]; their matches are sorted.
/// Throws Error(kBadInput) if nothing matches; a name without patterns is returned unchanged.
std::vector<std::string> list_matching_files(const std::string& pattern);

/// TokenDataset is one or several files read as one stream of tokens, in the order given. It is
/// immutable after opening; any number of threads may read it, each with its own ReadScratch.
class TokenDataset {
 public:
  /// Opens the files. A path is a file, a prefix, or a pattern (list_matching_files()). Throws
  /// Error(kBadInput) if a file cannot be read or holds no token.
  TokenDataset(const std::vector<std::string>& paths, const TokenFileOptions& options);

  int64_t tokens() const { return token_starts_.back(); }
  int64_t documents() const { return document_starts_.back(); }
  const std::vector<std::unique_ptr<TokenFile>>& files() const { return files_; }
  /// Returns the first token of each path, and the end: one number more than there are paths.
  /// path_documents() returns the first documents likewise.
  const std::vector<int64_t>& path_tokens() const { return path_tokens_; }
  const std::vector<int64_t>& path_documents() const { return path_documents_; }
  /// Returns the first file's path, with " and N more" if there are several.
  std::string name() const;

  /// Returns the first token of document d; for d = documents() it returns tokens().
  int64_t document_start(int64_t d) const;
  /// Reads tokens as TokenFile::read does, over the whole stream.
  void read(int64_t first, std::span<int32_t> ids, std::span<int32_t> labels,
            ReadScratch& scratch) const;
  TokenLocation locate(int64_t token) const;
  /// Lists findings from opening the files that do not stop training, one sentence each.
  std::vector<std::string> opening_notices() const;
  /// Returns whether every token counts as a label.
  bool all_trained() const;
  /// Returns the number of tokens in [first, first + count) that count as labels.
  int64_t count_trained(int64_t first, int64_t count) const;
  void check_not_truncated() const;

 private:
  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<int64_t> token_starts_{0};     // of each file, then the total
  std::vector<int64_t> document_starts_{0};  // likewise
  std::vector<int64_t> path_tokens_{0}, path_documents_{0};
};

}  // namespace ftrun
