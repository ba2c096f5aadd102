#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"

namespace ftrun::testing {

/// TemporaryFolder creates a folder and removes it with everything in it.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    path_ = (parent / "ftrun-test-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) bug(cat("mkdtemp: ", path_, ": ", errno_text(errno)));
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(*this / name, std::ios::binary | std::ios::trunc) << content;
    return *this / name;
  }

 private:
  std::string path_;
};

/// Returns /dev/shm, which is memory, if this process may write there, else the usual folder of
/// temporary files.
inline std::filesystem::path folder_in_memory() {
  if (::access("/dev/shm", W_OK) == 0) return "/dev/shm";
  return std::filesystem::temp_directory_path();
}

/// MemoryFolder is a TemporaryFolder in memory if possible, for tests that sync thousands of files.
class MemoryFolder : public TemporaryFolder {
 public:
  MemoryFolder() : TemporaryFolder(folder_in_memory()) {}
};

}  // namespace ftrun::testing
