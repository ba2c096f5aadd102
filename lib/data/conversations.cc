#include "data/conversations.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "data/jsonl_line.h"
#include "data/sidecar.h"
#include "data/token_dataset.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

bool masks_first_line(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<int32_t> ids, labels;
  if (!parse_jsonl_line(text.substr(0, text.find('\n')), ids, labels).empty()) return false;
  return std::find(labels.begin(), labels.end(), kIgnoredLabel) != labels.end();
}

bool file_holds_conversations(const std::string& path) {
  if (const auto side = read_sidecar(path)) {
    const bool masked = side->statistics.trained_tokens < side->statistics.tokens;
    return side->conversations.value_or(masked ? 1 : 0) > 0;
  }
  std::error_code error;
  if (fs::path(path).extension() == ".jsonl") return masks_first_line(path);
  return fs::exists(fs::path(path).replace_extension(".mask"), error);
}

}  // namespace

bool holds_conversations(const std::vector<std::string>& paths) {
  try {
    for (const std::string& pattern : paths)
      for (const std::string& path : matching_files(pattern))
        if (file_holds_conversations(path)) return true;
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) throw;
  }
  return false;
}

}  // namespace ftrun
