#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"

namespace ftrun {

/// Refuses "-" as the file of `option` with Error(kUsage): it cannot go to standard output.
inline void refuse_standard_output(const char* option, const std::string& path) {
  if (path == "-")
    throw Error(ExitCode::kUsage,
                cat(option, " -: this is written to a file, not to standard output"),
                "name a file");
}

/// Refuses a file, link or folder of `option` that exists with Error(kUsage): a user's data is
/// never overwritten.
inline void refuse_existing(const char* option, const std::string& path) {
  refuse_standard_output(option, path);
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, ignored)))
    throw Error(ExitCode::kUsage,
                cat(option, " ", path, ": already exists, and is not overwritten"),
                "give another name, or move it away");
}

}  // namespace ftrun
