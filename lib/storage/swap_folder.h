#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"

namespace ftrun {

/// Why swap files of `bytes` in all (every rank of this machine that shares the folder; 0 when not
/// known) cannot lie in `nvme_path`, or nothing. Changes nothing on disk: a folder that is missing
/// is judged by the nearest parent that is there, where it would be made. Opening a SwapFile finds
/// what only a write can tell.
/// Error(kUsage) for an empty path, Error(kEnvironment) otherwise.
std::optional<Error> swap_folder_problem(const std::string& nvme_path, int64_t bytes = 0);

/// The folder at which the file system of `path` is mounted; `path` must exist.
std::string mount_point_of(const std::string& path);

/// The remedies for a disk that is too small, and for a folder that cannot be used.
std::string full_disk_remedy();
std::string swap_folder_remedy();

}  // namespace ftrun
