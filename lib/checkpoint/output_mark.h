#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/owned_fd.h"

namespace ftrun {

/// The mark of a folder that this program wrote: a file in it that lists every other one. A folder
/// is replaced only while it holds exactly what its mark says (docs/checkpoint.md has the format).
inline constexpr const char* kOutputMark = "ftrun-output.json";

struct OutputFile {
  std::string name;  // below the output's folder: a file, or "folder/file"
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
};

/// Makes `folder` with a mark that says it is not complete, and what will be written (names as
/// OutputFile's), and holds it (hold_folder()).
[[nodiscard]] OwnedFd begin_output(FileSystem& files, const std::string& folder,
                                   const std::vector<std::string>& names);

/// Writes the mark of a complete folder, and syncs the folder.
void finish_output(FileSystem& files, const std::string& folder,
                   const std::vector<OutputFile>& content);

/// Says whether a folder holds a mark, complete or not, or nothing at all, and besides nothing
/// that the mark does not list, and that no process holds: what a killed process left under a
/// temporary name.
bool is_begun_output(FileSystem& files, const std::string& folder);

/// Finds where an output called `folder` lies when links are followed, an absolute path.
/// Error(kBadInput) for a link that leads nowhere, Error(kEnvironment) for another user's
/// (base/written_path.h).
std::string output_place(const std::string& folder);

/// The names of the files of a complete output that holds what its mark lists and nothing else,
/// every content compared. Error(kBadInput) naming what was added, removed or changed.
std::vector<std::string> require_complete_output(FileSystem& files, const std::string& folder);

/// OutputCheck says how closely files are compared with what was written: by names and sizes, or by
/// their contents too, which reads every one.
enum class OutputCheck { kSizes, kContents };

/// Error(kBadInput) unless `folder` (an output_place) is absent, is empty, or holds what this
/// program wrote and nothing else: naming what was added, removed or changed.
void require_replaceable(FileSystem& files, const std::string& folder,
                         OutputCheck check = OutputCheck::kContents);

}  // namespace ftrun
