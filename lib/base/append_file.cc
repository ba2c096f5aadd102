#include "base/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/limit_remedies.h"
#include "base/owned_fd.h"
#include "base/uninterrupted.h"
#include "base/written_path.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

[[noreturn]] void append_error(const std::string& path, const char* action, int error_number) {
  throw Error(ExitCode::kEnvironment,
              cat(path, ": ", action, " failed: ", errno_text(error_number)),
              writing_remedy(error_number));
}

}  // namespace

AppendFile::AppendFile(const std::string& path) : path_(path) {
  open();
}

void AppendFile::open() {
  OwnedFd opened = open_to_write(path_, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (!opened) append_error(path_, "open", errno);
  fd_ = opened.release();
  folder_id_ = folder_id();
}

std::optional<FolderId> AppendFile::folder_id() const {
  const fs::path parent = fs::path(path_).parent_path();
  return folder_id_of(parent.empty() ? "." : parent.string());
}

bool AppendFile::reopen_if_lost() {
  struct stat held {
  }, current{};
  if (::fstat(fd_, &held) != 0) append_error(path_, "stat", errno);
  if (::lstat(path_.c_str(), &current) == 0 && held.st_dev == current.st_dev &&
      held.st_ino == current.st_ino)
    return false;
  if (folder_id() != folder_id_) return false;  // the folder itself was removed or replaced
  const int lost = fd_;
  open();
  ::close(lost);
  return true;
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      folder_id_(other.folder_id_) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(folder_id_, other.folder_id_);
  return *this;
}

void AppendFile::append(std::string_view bytes) {
  struct stat before {};
  if (::fstat(fd_, &before) != 0) append_error(path_, "stat", errno);
  while (!bytes.empty()) {
    const ssize_t n = uninterrupted([&] { return ::write(fd_, bytes.data(), bytes.size()); });
    if (n <= 0) {
      const int error_number = n < 0 ? errno : ENOSPC;
      // Devices cannot be truncated; for them there is nothing to undo.
      if (::ftruncate(fd_, before.st_size) != 0) errno = error_number;
      append_error(path_, "write", error_number);
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace ftrun
