#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/folder_id.h"

namespace ftrun {

/// AppendFile is a file that only grows, made with mode 0600. Once append() returns, the kernel has
/// the bytes: they survive the death of this process, but not a power cut.
class AppendFile {
 public:
  /// Opens the file or creates it; never follows a symbolic link. Throws Error(kEnvironment).
  explicit AppendFile(const std::string& path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Appends all of `bytes` or, with Error(kEnvironment), none of them: a write that a full disk
  /// cut short is undone, so that the file never holds half a record.
  void append(std::string_view bytes);

  /// Opens or creates the file again if it was removed, renamed or replaced under its name, and
  /// returns whether it did; what was appended before is lost then. If its folder is gone, or
  /// another folder has its name (another run's, perhaps), it continues with the open file, which
  /// no longer has a name. Throws Error(kEnvironment).
  bool reopen_if_lost();

  const std::string& path() const { return path_; }

 private:
  void open();

  std::optional<FolderId> folder_id() const;

  std::string path_;
  int fd_ = -1;
  /// The folder in which the file was opened; nothing if it could not be examined.
  std::optional<FolderId> folder_id_;
};

}  // namespace ftrun
