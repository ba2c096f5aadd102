#include "data/token_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "data/binary_file.h"
#include "data/data_file.h"
#include "data/jsonl_file.h"
#include "data/megatron.h"
#include "data/sidecar.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

bool has_readable_extension(const std::string& name) {
  const std::string extension = fs::path(name).extension().string();
  return extension == ".bin" || extension == ".jsonl";
}

std::vector<std::string> list_data_files(const std::string& folder) {
  std::vector<std::string> names;
  for (const std::string& name : posix_files().list(folder.empty() ? "." : folder))
    if (has_readable_extension(name)) names.push_back(name);
  return names;
}

[[noreturn]] void refuse_folder(const std::string& path) {
  const std::vector<std::string> names = list_data_files(path);
  throw Error(ExitCode::kBadInput, cat(path, ": is a folder, expected a data file"),
              names.empty() ? "name a .bin or .jsonl file; this folder holds none"
                            : cat("name one of its files: ", join(names, ", ")));
}

[[noreturn]] void refuse_missing(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  std::error_code error;
  if (!fs::is_directory(folder.empty() ? "." : folder, error))
    throw Error(ExitCode::kBadInput, cat(path, ": no such file (and no folder ", folder, ")"),
                "check the path; it is relative to the working directory");
  const std::string near =
      closest_match(fs::path(path).filename().string(), list_data_files(folder));
  throw Error(ExitCode::kBadInput, cat(path, ": no such file"),
              near.empty() ? "check the path, or write the data with scripts/prepare_data.py"
                           : cat("did you mean ", (fs::path(folder) / near).string(), "?"));
}

[[noreturn]] void refuse_file_type(const std::string& path) {
  throw Error(ExitCode::kBadInput,
              cat(path, ": not a data file that ftrun reads (expected .bin, .idx or .jsonl)"),
              "turn text or chats into tokens with scripts/prepare_data.py");
}

/// Returns kMegatron, kJsonl, or kAuto for a flat file, whose format its first bytes determine.
DataFormat format_by_name(const std::string& path) {
  const std::string extension = fs::path(path).extension().string();
  const bool has_index = is_data_file(fs::path(path).replace_extension(".idx").string());
  if (extension == ".jsonl") return DataFormat::kJsonl;
  if (extension == ".idx" || (extension == ".bin" && has_index)) return DataFormat::kMegatron;
  if (extension == ".bin") return DataFormat::kAuto;
  refuse_file_type(path);
}

/// Finds the file itself, or the file of a prefix.
std::string find_named_file(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) refuse_folder(path);
  if (const auto file = find_data_file(path)) return *file;
  refuse_missing(path);
}

/// Refuses a file whose mask or index is lost: without it, prompts would be trained on, or
/// documents would begin and end elsewhere.
void refuse_lost_companion(const std::string& path) {
  const std::optional<Sidecar> side = read_sidecar(path);
  if (!side) return;
  for (const FileRecord& record : side->files) {
    if (record.role != "mask" && record.role != "index") continue;
    const std::string companion =
        fs::path(path).replace_extension(fs::path(record.path).extension()).string();
    if (is_data_file(companion)) continue;
    throw Error(ExitCode::kBadInput,
                cat(path, ": its ", record.role == "mask" ? "loss mask" : "index", ", ", companion,
                    ", does not exist, although ", side->path, " lists it"),
                cat("restore it; if the data no longer has one, remove ", side->path));
  }
}

}  // namespace

std::unique_ptr<TokenFile> open_token_file(const std::string& name,
                                           const TokenFileOptions& options) {
  const std::string path = find_named_file(name);
  refuse_lost_companion(path);
  const std::string stem = fs::path(path).replace_extension().string();
  switch (options.format == DataFormat::kAuto ? format_by_name(path) : options.format) {
    case DataFormat::kMegatron:
      return open_megatron(stem);
    case DataFormat::kJsonl:
      return std::make_unique<JsonlFile>(path);
    case DataFormat::kAuto:
    case DataFormat::kLlmc:
    case DataFormat::kNanogpt:
      break;
  }
  return open_flat_file(path, options);
}

void check_mapping_not_truncated(const MappedFile& file) {
  struct stat info {};
  if (::stat(file.path().c_str(), &info) != 0) return;  // removed: the mapping keeps its pages
  const auto current_bytes = static_cast<size_t>(info.st_size);
  if (current_bytes >= file.bytes().size()) return;
  throw Error(ExitCode::kBadInput,
              cat(file.path(), ": was cut from ", file.bytes().size(), " to ", current_bytes,
                  " bytes while in use"),
              "write new data to a new file; do not change a file that a run is reading");
}

}  // namespace ftrun
