#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"

namespace ftrun {

/// Returns the reason why `nvme_path` cannot hold swap files, or nothing. `bytes` is the total of
/// all ranks of this machine that share the folder; 0 if it is not known. The function changes
/// nothing on disk: if the folder is missing, it checks the nearest existing parent, where the
/// folder would be made. Problems that only a write can show are found when a SwapFile is opened.
/// The reason is an Error(kUsage) for an empty path, otherwise an Error(kEnvironment).
std::optional<Error> swap_folder_problem(const std::string& nvme_path, int64_t bytes = 0);

/// Returns the folder at which the file system of `path` is mounted; `path` must exist.
std::string mount_point_of(const std::string& path);

/// Return the remedy for a disk that is too small, and the remedy for a folder that cannot be used.
std::string full_disk_remedy();
std::string swap_folder_remedy();

}  // namespace ftrun
