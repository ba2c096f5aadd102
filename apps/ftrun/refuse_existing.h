#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"

namespace ftrun {

/// Error(kUsage) where `option` names "-", as if the file could go to standard output.
inline void refuse_standard_output(const char* option, const std::string& path) {
  if (path == "-")
    throw Error(ExitCode::kUsage,
                cat(option, " -: this is written to a file, not to standard output"),
                "name a file");
}

/// Error(kUsage) where `option` names a file, link or folder that is there: what a user has is
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
