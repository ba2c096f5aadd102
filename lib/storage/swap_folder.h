#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"

namespace ftrun {

/// Returns why swap files of `bytes` in all (every rank of this machine that shares the folder; 0
/// when not known) cannot lie in `nvme_path`, or nothing. Changes nothing on disk: a missing folder
/// is judged by its nearest existing parent, where it would be made. Opening a SwapFile finds the
/// problems that only a write can show. Error(kUsage) for an empty path, Error(kEnvironment)
/// otherwise.
std::optional<Error> swap_folder_problem(const std::string& nvme_path, int64_t bytes = 0);

/// Returns the folder at which the file system of `path` is mounted; `path` must exist.
std::string mount_point_of(const std::string& path);

/// Returns the remedy for a disk that is too small; the next one for a folder that cannot be used.
std::string full_disk_remedy();
std::string swap_folder_remedy();

}  // namespace ftrun
