#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/owned_fd.h"

namespace ftrun {

/// The name of the mark, a file that lists all other files of a folder that ftrun wrote. A folder
/// is replaced only while it holds exactly the files of its mark (docs/checkpoint.md has the
/// format).
inline constexpr const char* kOutputMark = "ftrun-output.json";

struct OutputFile {
  std::string name;  // below the output's folder: a file, or "folder/file"
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
};

/// Makes `folder` and holds it (lock_folder()). Writes a mark that says that the folder is not
/// complete and lists what will be written (names as in OutputFile).
[[nodiscard]] OwnedFd begin_output(FileSystem& files, const std::string& folder,
                                   const std::vector<std::string>& names);

/// Writes the mark of a complete folder, and syncs the folder.
void finish_output(FileSystem& files, const std::string& folder,
                   const std::vector<OutputFile>& content);

/// Returns whether a folder under a temporary name is a leftover of a killed process: no process
/// holds it, and it is empty, or has a mark (complete or not) and no file that the mark does not
/// list.
bool is_unfinished_output(FileSystem& files, const std::string& folder);

/// Returns the absolute path of the output `folder` after following links. Throws Error(kBadInput)
/// for a dangling link, and Error(kEnvironment) for another user's link (base/written_path.h).
std::string output_folder_path(const std::string& folder);

/// Returns the files of a complete output, after checking that it holds exactly the files of its
/// mark with unchanged contents. Throws Error(kBadInput) naming what was added, removed or changed.
std::vector<std::string> check_complete_output(FileSystem& files, const std::string& folder);

/// OutputCheck describes how the files of an output are compared with its mark: by names and sizes,
/// or also by contents, which reads every file.
enum class OutputCheck { kSizes, kContents };

/// Throws Error(kBadInput) for a `folder` (an output_folder_path()) unless it is absent, is empty,
/// or holds only what this program wrote. The error names what was added, removed or changed.
void check_replaceable(FileSystem& files, const std::string& folder,
                       OutputCheck check = OutputCheck::kContents);

}  // namespace ftrun
