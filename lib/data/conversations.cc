#include "data/conversations.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "data/data_file.h"
#include "data/jsonl_line.h"
#include "data/sidecar.h"
#include "data/token_dataset.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

/// Returns whether the first document has tokens that do not count in the loss. It represents all
/// documents of a file without .json.
bool masks_first_document(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto line = JsonlLines(text).next();
  std::vector<int32_t> ids, labels;
  if (!line || !parse_jsonl_line(line->text, ids, labels).empty()) return false;
  return std::find(labels.begin(), labels.end(), kIgnoredLabel) != labels.end();
}

/// Lists the files of a name or pattern; a missing file is listed under the name as given.
std::vector<std::string> list_files_of_pattern(const std::string& pattern) {
  std::vector<std::string> files = list_matching_files(pattern);
  for (std::string& file : files) file = find_data_file(file).value_or(file);
  return files;
}

bool file_holds_conversations(const std::string& path, DataFormat format) {
  if (const auto side = read_sidecar(path)) {
    const bool masked = side->statistics.trained_tokens < side->statistics.tokens;
    return side->conversations.value_or(masked ? 1 : 0) > 0;
  }
  std::error_code error;
  if (is_jsonl(path, format)) return masks_first_document(path);
  return fs::exists(fs::path(path).replace_extension(".mask"), error);
}

}  // namespace

bool holds_conversations(const std::vector<std::string>& paths, DataFormat format) {
  try {
    for (const std::string& pattern : paths)
      for (const std::string& path : list_files_of_pattern(pattern))
        if (file_holds_conversations(path, format)) return true;
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) throw;
  }
  return false;
}

std::vector<Error> check_conversation_lengths(const std::vector<std::string>& paths,
                                              const SequenceSetOptions& options) {
  std::vector<Error> errors;
  if (options.packing == SequencePacking::kConcat) return errors;
  const int64_t max_length = options.sequence_length + 1;
  for (const std::string& pattern : paths)
    for (const std::string& path : list_files_of_pattern(pattern)) {
      const auto side = read_sidecar(path);
      if (!side || side->conversations.value_or(0) == 0 ||
          side->longest_conversation.value_or(0) <= max_length)
        continue;
      errors.emplace_back(
          ExitCode::kBadInput,
          cat(path, ": its longest conversation has ", *side->longest_conversation,
              " tokens, more than the ", max_length, " that a sequence of data.sequence_length ",
              options.sequence_length, " needs (", options.sequence_length,
              " inputs and the last label): the rest would be ",
              options.packing == SequencePacking::kNone
                  ? "cut off"
                  : "trained on without what comes before it"),
          cat("set data.sequence_length to ", *side->longest_conversation - 1,
              " or more, or prepare the data again with scripts/prepare_data.py --sequence-length ",
              options.sequence_length, " --too-long truncate, drop or split"));
    }
  return errors;
}

}  // namespace ftrun
