#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "temporary_folder.h"

namespace ftrun::testing {

/// PseudoRoot is a folder with files like those of /proc and /sys.
class PseudoRoot {
 public:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace ftrun::testing
