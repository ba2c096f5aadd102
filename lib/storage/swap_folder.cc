#include "storage/swap_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "base/text.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

fs::path absolute_path(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return (error ? fs::path(path) : absolute).lexically_normal();
}

/// Finds the nearest parent that exists. It may be a file, or a folder that this user may not
/// enter: such an obstacle must also be found, so that it is reported.
fs::path nearest_existing(fs::path path) {
  struct stat info {};
  while (::lstat(path.c_str(), &info) != 0 && path.has_parent_path() && path != path.parent_path())
    path = path.parent_path();
  return path;
}

}  // namespace

std::string full_disk_remedy() {
  return "free space on that file system, point nvme_path at another one, or offload less";
}

std::string swap_folder_remedy() {
  return "point nvme_path at a folder on a local disk that this user may write to";
}

std::optional<Error> swap_folder_problem(const std::string& nvme_path, int64_t bytes) {
  if (nvme_path.empty()) return Error(ExitCode::kUsage, "nvme_path is empty", swap_folder_remedy());
  const auto refuse = [&](const std::string& why) {
    return Error(ExitCode::kEnvironment, cat("nvme_path ", nvme_path, ": ", why),
                 swap_folder_remedy());
  };
  const std::string existing = nearest_existing(absolute_path(nvme_path)).string();
  std::error_code error;
  if (!fs::is_directory(existing, error))
    return refuse(error ? cat(existing, " cannot be used: ", errno_text(error.value()))
                        : cat(existing, " is not a folder"));
  if (::faccessat(AT_FDCWD, existing.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    return refuse(cat("this user may not write to ", existing, ": ", errno_text(errno)));
  const int64_t free = posix_files().free_bytes(existing);
  if (bytes > free)
    return Error(ExitCode::kEnvironment,
                 cat("nvme_path ", nvme_path, ": ", human_bytes(bytes), " wanted on this machine, ",
                     human_bytes(free), " free on ", mount_point_of(existing)),
                 full_disk_remedy());
  return std::nullopt;
}

std::string mount_point_of(const std::string& path) {
  std::error_code error;
  fs::path mount_point = fs::canonical(path, error);
  if (error) return path;
  struct stat status {
  }, parent_status{};
  ::stat(mount_point.c_str(), &status);
  while (mount_point != mount_point.parent_path() &&
         ::stat(mount_point.parent_path().c_str(), &parent_status) == 0 &&
         parent_status.st_dev == status.st_dev)
    mount_point = mount_point.parent_path();
  return mount_point.string();
}

}  // namespace ftrun
