#include "checkpoint/output_mark.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/hmac.h"
#include "base/replace_folder.h"
#include "base/text.h"
#include "base/utf8.h"
#include "base/written_path.h"
#include "checkpoint/json_strict.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kFormat = "ftrun-output";
constexpr int64_t kVersion = 1;
constexpr const char* kReplaceRemedy = "choose another folder, or move this one away";

std::string mark_path(const std::string& folder) {
  return (fs::path(folder) / kOutputMark).string();
}

std::string decode_hex_text(const std::string& digits, const std::string& path) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    uint8_t byte = 0;
    const char* const end = digits.data() + std::min(i + 2, digits.size());
    if (const auto read = std::from_chars(digits.data() + i, end, byte, 16);
        read.ptr != end || end - digits.data() != static_cast<std::ptrdiff_t>(i + 2))
      throw Error(ExitCode::kBadInput, cat(path, ": \"name_hex\" must be hexadecimal digits"));
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

std::string mark_text(bool complete, const std::vector<OutputFile>& content) {
  ordered_json list = ordered_json::array();
  for (const OutputFile& file : content) {
    ordered_json entry{
        {"name", escape_not_utf8(file.name)}, {"bytes", file.bytes}, {"xxh3", hex64(file.xxh3)}};
    if (find_invalid_utf8(file.name))
      entry["name_hex"] = hex_text(file.name);  // because JSON holds only UTF-8
    list.push_back(std::move(entry));
  }
  const ordered_json mark{
      {"format", kFormat}, {"version", kVersion}, {"complete", complete}, {"files", list}};
  return mark.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

using FilesByName = std::map<std::string, OutputFile>;

struct CompletionMark {
  bool complete = false;
  FilesByName content;
};

CompletionMark read_mark(const std::string& path) {
  const nlohmann::json json = parse_json_strict(read_file(path), path);
  if (!json.is_object() || json.value("format", nlohmann::json()) != kFormat)
    throw Error(ExitCode::kBadInput, cat(path, ": was not written by ftrun"));
  CompletionMark mark{.complete = json.value("complete", nlohmann::json()) == true, .content = {}};
  for (const nlohmann::json& entry : json_array(json, "files", path)) {
    if (!entry.is_object())
      throw Error(ExitCode::kBadInput, cat(path, ": \"files\" must hold objects"));
    const std::string name = entry.contains("name_hex")
                                 ? decode_hex_text(json_text(entry, "name_hex", path), path)
                                 : json_text(entry, "name", path);
    mark.content[name] = {name, json_int(entry, "bytes", path), json_hash(entry, "xxh3", path)};
  }
  return mark;
}

bool is_unchanged(const std::string& path, const OutputFile& written, OutputCheck check) {
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path, error))) return false;
  if (static_cast<int64_t>(fs::file_size(path, error)) != written.bytes || error) return false;
  return check == OutputCheck::kSizes || xxh3_of_file(path) == written.xxh3;
}

/// Returns whether a file system is mounted at the folder. The content of a mount point can be
/// replaced, but not the mount point itself.
bool is_mount_point(const std::string& folder) {
  struct statx found {};
  return ::statx(AT_FDCWD, folder.c_str(), 0, STATX_BASIC_STATS, &found) == 0 &&
         (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

/// Lists the names in `folder`. A subfolder that holds listed files is replaced by the paths of its
/// files ("folder/file").
std::vector<std::string> list_paths(FileSystem& files, const std::string& folder,
                                    const FilesByName& content) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const std::string& name : files.list(folder)) {
    const fs::path path = fs::path(folder) / name;
    const auto first = content.lower_bound(name + "/");
    const bool is_listed = first != content.end() && first->first.starts_with(name + "/");
    if (is_listed && fs::is_directory(fs::symlink_status(path, error)) &&
        !is_mount_point(path.string())) {
      for (const std::string& file : files.list(path.string()))
        paths.push_back(cat(name, "/", file));
    } else {
      paths.push_back(name);
    }
  }
  return paths;
}

/// Lists how the folder differs from what was written: "README.md was added", ...
std::vector<std::string> list_differences(FileSystem& files, const std::string& folder,
                                          const FilesByName& content, OutputCheck check) {
  std::vector<std::string> differences;
  FilesByName missing_files = content;
  for (const std::string& name : list_paths(files, folder, content)) {
    if (name == kOutputMark) continue;
    const auto listed = content.find(name);
    missing_files.erase(name);
    if (listed == content.end())
      differences.push_back(cat(printable_text(name), " was added"));
    else if (!is_unchanged((fs::path(folder) / name).string(), listed->second, check))
      differences.push_back(cat(printable_text(name), " was changed"));
  }
  for (const auto& [name, file] : missing_files)
    differences.push_back(cat(printable_text(name), " was removed"));
  return differences;
}

std::string short_list_text(std::vector<std::string> parts) {
  constexpr size_t kShown = 5;
  const size_t count = parts.size();
  parts.resize(std::min(count, kShown));
  return join(parts, ", ") + (count > kShown ? cat(" and ", count - kShown, " more") : "");
}

[[noreturn]] void refuse_to_replace(const std::string& folder, const std::string& why) {
  throw Error(ExitCode::kBadInput, cat(folder, ": is not replaced: ", why), kReplaceRemedy);
}

}  // namespace

OwnedFd begin_output(FileSystem& files, const std::string& folder,
                     const std::vector<std::string>& names) {
  std::vector<OutputFile> planned;
  for (const std::string& name : names) planned.push_back({name});
  files.make_folder(folder);
  OwnedFd folder_lock = lock_folder(folder);
  write_file_atomic(files, mark_path(folder), mark_text(false, planned));
  return folder_lock;
}

void finish_output(FileSystem& files, const std::string& folder,
                   const std::vector<OutputFile>& content) {
  write_file_atomic(files, mark_path(folder), mark_text(true, content));
}

bool is_unfinished_output(FileSystem& files, const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(folder, error)) || is_locked(folder)) return false;
  CompletionMark mark;
  try {
    if (files.exists(mark_path(folder))) mark = read_mark(mark_path(folder));
  } catch (const Error&) {
    return false;
  }
  const auto is_ours = [&](const std::string& name) {
    // The mark is the first file that is created; it is written under a temporary name first.
    if (name == kOutputMark || name.starts_with(cat(kOutputMark, ".tmp"))) return true;
    const auto written = mark.content.find(name);
    return written != mark.content.end() &&
           (!mark.complete ||
            is_unchanged((fs::path(folder) / name).string(), written->second, OutputCheck::kSizes));
  };
  const std::vector<std::string> paths = list_paths(files, folder, mark.content);
  return std::all_of(paths.begin(), paths.end(), is_ours);
}

std::string output_folder_path(const std::string& folder) {
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(folder, error)) && !fs::exists(folder, error))
    throw Error(ExitCode::kBadInput,
                cat(folder, ": is a link to ", fs::read_symlink(folder, error).string(),
                    ", which does not exist"),
                "make the folder that the link names, or choose another one");
  static_cast<void>(
      open_folder_safely(folder));  // throws for another user's link; `path` has no links
  const std::string path = fs::weakly_canonical(fs::absolute(folder, error), error).string();
  if (error)
    throw Error(ExitCode::kBadInput,
                cat(folder, ": cannot be looked up: ", errno_text(error.value())),
                "choose another folder");
  // The path of a folder that does not exist yet keeps the slash at its end.
  return path.size() > 1 && path.ends_with('/') ? path.substr(0, path.size() - 1) : path;
}

void check_replaceable(FileSystem& files, const std::string& folder, OutputCheck check) {
  if (!files.exists(folder)) return;
  std::error_code error;
  if (!fs::is_directory(folder, error)) refuse_to_replace(folder, "it is not a folder");
  if (is_mount_point(folder))
    refuse_to_replace(folder,
                      "another file system is mounted there; a folder in it can be written");
  if (files.list(folder).empty()) return;
  const std::string mark = mark_path(folder);
  if (!files.exists(mark))
    refuse_to_replace(folder, cat("it holds no ", kOutputMark, ", so ftrun did not write it"));
  std::vector<std::string> differences;
  try {
    differences = list_differences(files, folder, read_mark(mark).content, check);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadInput) throw;
    refuse_to_replace(folder, error.message());
  }
  if (!differences.empty())
    refuse_to_replace(folder, cat("since ftrun wrote it, ", short_list_text(differences)));
}

std::vector<std::string> check_complete_output(FileSystem& files, const std::string& folder) {
  constexpr const char* kAnew = "write it again, or restore it from a copy";
  const std::string mark = mark_path(folder);
  if (!files.exists(mark))
    throw Error(ExitCode::kBadInput, cat(folder, ": holds no ", kOutputMark), kAnew);
  const auto [complete, content] = read_mark(mark);
  if (!complete)
    throw Error(ExitCode::kBadInput, cat(folder, ": is not complete: writing it was interrupted"),
                kAnew);
  const std::vector<std::string> differences =
      list_differences(files, folder, content, OutputCheck::kContents);
  if (!differences.empty())
    throw Error(ExitCode::kBadInput,
                cat(folder, ": since it was written, ", short_list_text(differences)), kAnew);
  std::vector<std::string> names;
  for (const auto& [name, file] : content) names.push_back(name);
  return names;
}

}  // namespace ftrun
