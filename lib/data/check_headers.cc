#include "data/check_headers.h"

#include <filesystem>

#include "base/utf8.h"
#include "data/data_file.h"
#include "data/fingerprint.h"
#include "data/jsonl_line.h"
#include "data/token_dataset.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

/// JSONL files up to this size are parsed completely, which takes milliseconds; of larger files
/// only the first line is parsed.
constexpr uintmax_t kWholeJsonlBytes = 1 << 20;

bool is_large_jsonl(const std::string& file, DataFormat format) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(file, error);
  return !error && bytes > kWholeJsonlBytes && is_jsonl(file, format);
}

void check_first_line(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  refuse_wide_encoding(text, path);
  std::vector<int32_t> ids, labels;
  const auto line = JsonlLines(text).next();
  if (!line || line->text.size() == text.size()) return;  // a file of one line is read later
  const std::string problem = parse_jsonl_line(line->text, ids, labels);
  if (!problem.empty())
    throw Error(ExitCode::kBadInput, cat(path, ":", line->number, ": ", problem),
                "write one object a line, such as {\"input_ids\": [1, 2, 3]}");
}

void check_file(const std::string& path, const TokenFileOptions& options,
                std::optional<int64_t> vocab_rows) {
  if (const auto file = find_data_file(path); file && is_large_jsonl(*file, options.format))
    return check_first_line(*file);
  const TokenDataset opened({path}, options);
  if (vocab_rows) check_recorded_ids(opened, *vocab_rows);
}

}  // namespace

std::vector<Error> check_headers(const std::vector<std::string>& paths, TokenFileOptions options,
                                 std::optional<int64_t> vocab_rows) {
  options.find_documents = false;  // that would read every token
  std::vector<Error> problems;
  const auto attempt = [&problems](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      if (error.code() != ExitCode::kBadInput) throw;
      problems.push_back(error);
    }
  };
  for (const std::string& pattern : paths)
    attempt([&] {
      for (const std::string& path : list_matching_files(pattern))
        attempt([&] { check_file(path, options, vocab_rows); });
    });
  return problems;
}

}  // namespace ftrun
