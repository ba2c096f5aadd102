#include "base/written_path.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/uninterrupted.h"

namespace ftrun {
namespace {

constexpr int kMaxLinks = 40;  // the kernel's own limit

/// Opens a folder in one call if no link is on the way; returns nothing otherwise, or if the kernel
/// is older than 5.6.
OwnedFd open_without_links(const std::string& folder) {
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_NO_SYMLINKS;
  return OwnedFd(
      static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, folder.c_str(), &how, sizeof how)));
}

OwnedFd open_first_folder(std::string_view path) {
  return OwnedFd(::open(path.starts_with('/') ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

/// Pushes the names in a path, the last one first, on the stack of names that are still to be
/// walked.
void push_names(const std::string& path, std::vector<std::string>& names) {
  std::vector<std::string> more = split(path, '/');
  std::erase_if(more, [](const std::string& name) { return name.empty() || name == "."; });
  names.insert(names.end(), more.rbegin(), more.rend());
}

[[noreturn]] void refuse_link(const std::string& path, const std::string& name,
                              const struct stat& link) {
  throw Error(ExitCode::kEnvironment,
              cat(path, ": cannot be written to: \"", name,
                  "\" in its path is a link of another user (uid ", link.st_uid,
                  ") in a folder that others may write to"),
              "give the path of the folder that the link names, if that is where it should go; "
              "else choose a folder that only you may write to");
}

/// Reads the target of a link in `folder`; "" with errno if it is not a link.
std::string read_link_target(const std::string& path, const OwnedFd& folder,
                             const std::string& name) {
  const OwnedFd link(::openat(folder.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat of_link {
  }, of_folder{};
  if (!link || ::fstat(link.get(), &of_link) != 0 || ::fstat(folder.get(), &of_folder) != 0)
    return "";
  if (!S_ISLNK(of_link.st_mode)) {
    errno = ENOTDIR;
    return "";
  }
  if (!may_follow_link(of_link, of_folder, ::geteuid())) refuse_link(path, name, of_link);
  std::array<char, PATH_MAX> target{};
  const ssize_t size = ::readlinkat(link.get(), "", target.data(), target.size());
  return size <= 0 ? "" : std::string(target.data(), static_cast<size_t>(size));
}

std::string without_slashes_at_end(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

/// Lists the names in an open folder, which it closes; empty, with errno set, if they cannot be
/// read.
std::vector<std::string> list_names(OwnedFd folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(folder.get()), ::closedir);
  if (!listing) return {};
  static_cast<void>(folder.release());
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(listing.get()))
    if (const std::string_view name = static_cast<const char*>(entry->d_name);
        name != "." && name != "..")
      names.emplace_back(name);
  return names;
}

int remove_entry(int folder, const std::string& name) {
  if (::unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) return 0;
  const int unlink_error = errno;
  if (unlink_error != EISDIR && unlink_error != EPERM) return unlink_error;
  OwnedFd inside(::openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!inside) return errno == ENOTDIR ? unlink_error : errno;
  const int fd = inside.get();
  OwnedFd listed(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!listed) return errno;
  for (const std::string& entry : list_names(std::move(listed)))
    if (const int failed = remove_entry(fd, entry); failed != 0) return failed;
  return ::unlinkat(folder, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : errno;
}

}  // namespace

bool may_follow_link(const struct stat& link, const struct stat& folder, uid_t user) {
  const bool is_open_to_others = (folder.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  return !is_open_to_others || link.st_uid == user || link.st_uid == 0;
}

OwnedFd open_folder_safely(const std::string& folder) {
  const std::string path = folder.empty() ? "." : folder;
  if (OwnedFd at_once = open_without_links(path)) return at_once;
  OwnedFd current = open_first_folder(path);
  std::vector<std::string> names;
  push_names(path, names);
  int links = 0;
  while (current && !names.empty()) {
    const std::string name = std::move(names.back());
    names.pop_back();
    if (OwnedFd next(
            ::openat(current.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        next) {
      current = std::move(next);
      continue;
    }
    if (errno != ENOTDIR && errno != ELOOP) return {};
    const std::string target = read_link_target(path, current, name);
    if (target.empty()) return {};
    if (++links > kMaxLinks) {
      errno = ELOOP;
      return {};
    }
    if (target.starts_with('/')) current = open_first_folder(target);
    push_names(target, names);
  }
  return current;
}

FolderEntry open_parent(const std::string& path) {
  const std::string trimmed_path = without_slashes_at_end(path);
  const size_t slash = trimmed_path.rfind('/');
  const std::string folder = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : trimmed_path.substr(0, slash);
  FolderEntry parent;
  parent.name = slash == std::string::npos ? trimmed_path : trimmed_path.substr(slash + 1);
  if (parent.name.empty()) parent.name = ".";  // the root itself
  parent.folder = open_folder_safely(folder);
  return parent;
}

OwnedFd open_to_write(const std::string& path, int flags, mode_t mode) {
  const FolderEntry to = open_parent(path);
  if (!to.folder) return {};
  return OwnedFd(uninterrupted([&] {
    return ::openat(to.folder.get(), to.name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, mode);
  }));
}

int remove_tree(const std::string& path) {
  const FolderEntry entry = open_parent(path);
  if (!entry.folder) return errno == ENOENT ? 0 : errno;
  return remove_entry(entry.folder.get(), entry.name);
}

}  // namespace ftrun
