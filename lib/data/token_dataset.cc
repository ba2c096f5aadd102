#include "data/token_dataset.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace ftrun {
namespace {

size_t file_of(const std::vector<int64_t>& starts, int64_t at) {
  const auto after = std::upper_bound(starts.begin(), starts.end() - 1, at);
  return static_cast<size_t>(after - starts.begin() - 1);
}

}  // namespace

std::vector<std::string> matching_files(const std::string& pattern) {
  std::error_code error;
  if (pattern.find_first_of("*?[") == std::string::npos || std::filesystem::exists(pattern, error))
    return {pattern};
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (paths.empty())
    throw Error(ExitCode::kBadInput, cat(pattern, ": no file matches this pattern"),
                "check the pattern; it is relative to the working directory");
  return paths;
}

TokenDataset::TokenDataset(const std::vector<std::string>& paths, const TokenFileOptions& options) {
  for (const std::string& pattern : paths) {
    for (const std::string& path : matching_files(pattern)) {
      files_.push_back(open_token_file(path, options));
      token_starts_.push_back(tokens() + files_.back()->tokens());
      document_starts_.push_back(documents() + files_.back()->documents());
    }
    path_tokens_.push_back(tokens());
    path_documents_.push_back(documents());
  }
  if (files_.empty())
    throw Error(ExitCode::kUsage, "no data file is named", "set data.train to a file");
  if (tokens() == 0)
    throw Error(ExitCode::kBadInput, cat(name(), ": holds no tokens"),
                "write the data again with scripts/prepare_data.py");
}

std::string TokenDataset::name() const {
  const std::string& first = files_.front()->path();
  return files_.size() == 1 ? first : cat(first, " and ", files_.size() - 1, " more");
}

int64_t TokenDataset::document_start(int64_t d) const {
  if (d >= documents()) return tokens();
  const size_t f = file_of(document_starts_, d);
  return token_starts_[f] + files_[f]->document_start(d - document_starts_[f]);
}

void TokenDataset::read(int64_t first, std::span<int32_t> ids, std::span<int32_t> labels,
                        ReadScratch& scratch) const {
  while (!ids.empty()) {
    const size_t f = file_of(token_starts_, first);
    const auto left = static_cast<size_t>(token_starts_[f + 1] - first);
    const size_t n = std::min(left, ids.size());
    files_[f]->read(first - token_starts_[f], ids.first(n), labels.first(n), scratch);
    first += static_cast<int64_t>(n);
    ids = ids.subspan(n);
    labels = labels.subspan(n);
  }
}

TokenPlace TokenDataset::place(int64_t token) const {
  const size_t f = file_of(token_starts_, token);
  return files_[f]->place(token - token_starts_[f]);
}

std::vector<std::string> TokenDataset::notes() const {
  std::vector<std::string> notes;
  for (const auto& file : files_)
    for (std::string& note : file->notes()) notes.push_back(std::move(note));
  return notes;
}

bool TokenDataset::all_trained() const {
  return std::all_of(files_.begin(), files_.end(),
                     [](const auto& f) { return f->trained().all(); });
}

int64_t TokenDataset::trained(int64_t first, int64_t count) const {
  int64_t total = 0;
  while (count > 0) {
    const size_t f = file_of(token_starts_, first);
    const int64_t n = std::min(count, token_starts_[f + 1] - first);
    total += files_[f]->trained().count(first - token_starts_[f], n);
    first += n;
    count -= n;
  }
  return total;
}

void TokenDataset::check_not_cut() const {
  for (const auto& file : files_) file->check_not_cut();
}

}  // namespace ftrun
