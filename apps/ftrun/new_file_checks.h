#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace ftrun {

/// Throws Error(kUsage) if the file of `option` is "-", because it cannot be standard output.
inline void refuse_standard_output(const char* option, const std::string& path) {
  if (path == "-")
    throw Error(ExitCode::kUsage,
                cat(option, " -: this is written to a file, not to standard output"),
                "name a file");
}

/// Throws Error(kUsage) if the path of `option` exists as a file, link or folder, because data of a
/// user is never overwritten.
inline void refuse_existing(const char* option, const std::string& path) {
  refuse_standard_output(option, path);
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, ignored)))
    throw Error(ExitCode::kUsage,
                cat(option, " ", path, ": already exists, and is not overwritten"),
                "give another name, or move it away");
}

/// Throws Error(kEnvironment) if the folder of the file of `option` is missing or may not be
/// written to. Called before the work whose result the file will hold.
inline void check_writable_folder(
    const char* option, const std::string& path,
    const char* remedy = "give this user the right to write there, or name another place") {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  std::error_code ignored;
  std::string why = writing_problem(folder);
  if (why.empty() && !std::filesystem::exists(folder, ignored))
    why = cat(folder, ": does not exist");
  if (!why.empty()) throw Error(ExitCode::kEnvironment, cat(option, " ", path, ": ", why), remedy);
}

/// Checks that the path of `option` is free for a new file. Throws the errors of refuse_existing()
/// and check_writable_folder().
inline void check_new_file(const char* option, const std::string& path) {
  refuse_existing(option, path);
  check_writable_folder(option, path);
}

}  // namespace ftrun
