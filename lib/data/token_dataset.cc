#include "data/token_dataset.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/text.h"
#include "data/data_file.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

size_t file_index(const std::vector<int64_t>& starts, int64_t item) {
  const auto after = std::upper_bound(starts.begin(), starts.end() - 1, item);
  return static_cast<size_t>(after - starts.begin() - 1);
}

/// Returns whether a name in data.train is an existing file or folder, or the prefix of a data
/// file.
bool is_data_path(const std::string& name) {
  std::error_code error;
  return fs::exists(name, error) || find_data_file(name).has_value();
}

bool is_pattern(const std::string& part) {
  return part.find_first_of("*?[") != std::string::npos;
}

/// Lists the parts of a path, from the first one that does not exist.
std::vector<std::string> missing_parts(const std::string& path) {
  std::error_code error;
  size_t begin = 0;
  for (size_t slash = path.find('/'); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    if (slash > 0 && !fs::exists(path.substr(0, slash), error)) break;
    begin = slash + 1;
  }
  return split(std::string_view(path).substr(begin), '/');
}

/// Lists the paths that match `part` in each folder (empty, or ending with a slash): `part` itself
/// if it exists, else its matches, sorted.
std::vector<std::string> list_matching_paths(const std::vector<std::string>& folders,
                                             const std::string& part) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const std::string& path : folders) {
    const std::string folder = path.empty() || path.ends_with('/') ? path : path + "/";
    if (is_data_path(folder + part) || !is_pattern(part)) {
      paths.push_back(folder + part);
      continue;
    }
    const std::string listed_folder = folder.empty() ? "." : folder;
    if (!fs::is_directory(listed_folder, error)) continue;
    for (const std::string& name : posix_files().list(listed_folder))
      if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) == 0) paths.push_back(folder + name);
  }
  return paths;
}

}  // namespace

std::vector<std::string> list_matching_files(const std::string& name) {
  const std::string pattern = is_data_path(name) ? name : find_hub_file(name);
  if (is_data_path(pattern)) return {pattern};
  const std::vector<std::string> rest = missing_parts(pattern);
  if (std::none_of(rest.begin(), rest.end(), is_pattern)) return {pattern};
  size_t rest_bytes = rest.size() - 1;  // the slashes between them
  for (const std::string& part : rest) rest_bytes += part.size();
  std::vector<std::string> paths{pattern.substr(0, pattern.size() - rest_bytes)};
  for (const std::string& part : rest) paths = list_matching_paths(paths, part);
  std::erase_if(paths, [](const std::string& path) { return !is_data_path(path); });
  if (paths.empty())
    throw Error(ExitCode::kBadInput, cat(pattern, ": no file matches this pattern"),
                "check the pattern; it is relative to the working directory");
  return paths;
}

TokenDataset::TokenDataset(const std::vector<std::string>& paths, const TokenFileOptions& options) {
  for (const std::string& pattern : paths) {
    for (const std::string& path : list_matching_files(pattern)) {
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
  const size_t f = file_index(document_starts_, d);
  return token_starts_[f] + files_[f]->document_start(d - document_starts_[f]);
}

void TokenDataset::read(int64_t first, std::span<int32_t> ids, std::span<int32_t> labels,
                        ReadScratch& scratch) const {
  while (!ids.empty()) {
    const size_t f = file_index(token_starts_, first);
    const auto left = static_cast<size_t>(token_starts_[f + 1] - first);
    const size_t n = std::min(left, ids.size());
    files_[f]->read(first - token_starts_[f], ids.first(n), labels.first(n), scratch);
    first += static_cast<int64_t>(n);
    ids = ids.subspan(n);
    labels = labels.subspan(n);
  }
}

TokenLocation TokenDataset::locate(int64_t token) const {
  const size_t f = file_index(token_starts_, token);
  return files_[f]->locate(token - token_starts_[f]);
}

std::vector<std::string> TokenDataset::opening_notices() const {
  std::vector<std::string> notes;
  for (const auto& file : files_)
    for (std::string& note : file->opening_notices()) notes.push_back(std::move(note));
  return notes;
}

bool TokenDataset::all_trained() const {
  return std::all_of(files_.begin(), files_.end(),
                     [](const auto& f) { return f->loss_mask().all_trained(); });
}

int64_t TokenDataset::count_trained(int64_t first, int64_t count) const {
  int64_t total = 0;
  while (count > 0) {
    const size_t f = file_index(token_starts_, first);
    const int64_t n = std::min(count, token_starts_[f + 1] - first);
    total += files_[f]->loss_mask().count_trained(first - token_starts_[f], n);
    first += n;
    count -= n;
  }
  return total;
}

void TokenDataset::check_not_truncated() const {
  for (const auto& file : files_) file->check_not_truncated();
}

}  // namespace ftrun
