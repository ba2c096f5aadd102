#pragma once

#include <filesystem>
#include <string>

namespace ftrun {

/// Returns the checkpoints folder if the path is a run folder; otherwise the path itself.
inline std::string checkpoints_folder(const std::string& path) {
  const std::string inside = path + "/checkpoints";
  return std::filesystem::is_directory(inside) ? inside : path;
}

}  // namespace ftrun
