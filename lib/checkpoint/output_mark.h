#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/owned_fd.h"

namespace ftrun {

/// The mark of a folder that this program wrote: a file in the folder that lists every other one. A
/// folder is replaced only while it holds exactly what its mark says (docs/checkpoint.md has the
/// format).
inline constexpr const char* kOutputMark = "ftrun-output.json";

struct OutputFile {
  std::string name;  // below the output's folder: a file, or "folder/file"
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
};

/// Makes `folder` and holds it (hold_folder()), with a mark that says that it is not complete and
/// what will be written (names as OutputFile's).
[[nodiscard]] OwnedFd begin_output(FileSystem& files, const std::string& folder,
                                   const std::vector<std::string>& names);

/// Writes the mark of a complete folder, and syncs the folder.
void finish_output(FileSystem& files, const std::string& folder,
                   const std::vector<OutputFile>& content);

/// Says whether a folder is what a killed process left under a temporary name: no process holds it,
/// it holds a mark (complete or not) or nothing at all, and nothing that the mark does not list.
bool is_begun_output(FileSystem& files, const std::string& folder);

/// Finds the absolute path of an output called `folder` when links are followed. Error(kBadInput)
/// for a link that leads nowhere, Error(kEnvironment) for another user's (base/written_path.h).
std::string output_place(const std::string& folder);

/// Lists the files of a complete output that holds what its mark lists and nothing else; compares
/// every content. Error(kBadInput) names what was added, removed or changed.
std::vector<std::string> require_complete_output(FileSystem& files, const std::string& folder);

/// OutputCheck says how closely files are compared with what was written: by names and sizes, or by
/// their contents too, which reads every one.
enum class OutputCheck { kSizes, kContents };

/// Refuses a `folder` (an output_place) with Error(kBadInput) unless it is absent, is empty, or
/// holds what this program wrote and nothing else. The error names what was added, removed or
/// changed.
void require_replaceable(FileSystem& files, const std::string& folder,
                         OutputCheck check = OutputCheck::kContents);

}  // namespace ftrun
