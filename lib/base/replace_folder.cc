#include "base/replace_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <system_error>

#include "base/as_error.h"
#include "base/error.h"
#include "base/log.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kReplaced = ".replaced-";

/// Renames a folder to a temporary name for its removal, because a half-removed folder must not be
/// mistaken for a complete one.
std::string rename_for_removal(FileSystem& files, const std::string& old_folder,
                               const std::string& folder) {
  const auto leftover = parse_leftover_name(fs::path(old_folder).filename().string());
  if (!leftover || !leftover->complete) return old_folder;
  std::string to_remove = make_temporary_path(folder);
  files.rename(old_folder, to_remove);
  return to_remove;
}

/// Removes a folder; logs a warning if it stays. That is not a failure: a folder of a network file
/// system cannot be removed while any process reads a file of it. The next start tries again.
void remove_or_warn(FileSystem& files, const std::string& old_folder, const std::string& folder,
                    std::string_view marker_file, const char* what) {
  try {
    const std::string to_remove = rename_for_removal(files, old_folder, folder);
    std::error_code error;
    // Only the link is removed, because its target does not belong to ftrun.
    if (fs::is_symlink(fs::symlink_status(to_remove, error))) return files.remove_all(to_remove);
    for (const std::string& name : files.list(to_remove))
      if (name != marker_file) files.remove_all((fs::path(to_remove) / name).string());
    files.remove_all(to_remove);
  } catch (const std::exception& exception) {
    log_warning(cat(folder, ": ", what, " could not be removed: ", as_error(exception).message()));
  }
}

/// Syncs the folder in which a folder was replaced. If that fails, logs a warning and returns
/// false: a power cut may then bring back what had the name before.
bool sync_or_warn(FileSystem& files, const std::string& folder, const std::string& old_folder) {
  try {
    files.sync_folder(parent_folder(folder));
    return true;
  } catch (const Error& error) {
    const std::string kept =
        old_folder.empty() ? "" : cat("; what it replaced is kept as ", old_folder);
    log_warning(
        cat(folder, ": is written, but may be lost in a power cut: ", error.message(), kept));
    return false;
  }
}

/// Visits the leftovers that `is_ours` accepts: visit(its path, the final path, whether it is
/// renamed back to the final path).
template <typename Visit>
void each_leftover(FileSystem& files, const std::string& parent, const IsOurs& is_ours,
                   Visit visit) {
  if (!files.exists(parent)) return;
  for (const std::string& name : files.list(parent)) {
    const std::string path = (fs::path(parent) / name).string();
    const auto leftover = parse_leftover_name(name);
    if (!leftover || !is_ours(*leftover, path)) continue;
    const std::string original = (fs::path(parent) / leftover->original).string();
    const bool is_restored = leftover->complete && !files.exists(original);
    visit(path, original, is_restored);
  }
}

/// Returns the bytes on disk that are freed when the entry is removed: none for a file that has
/// another hard link.
int64_t disk_bytes(const fs::path& path) {
  struct stat info {};
  constexpr int64_t kBlock = 512;  // the unit of st_blocks on every file system
  const bool is_freed =
      ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1;
  return is_freed ? static_cast<int64_t>(info.st_blocks) * kBlock : 0;
}

/// Returns the bytes on disk of all files below a folder, as far as they are visible.
int64_t tree_bytes(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error))
    bytes += disk_bytes(it->path());
  return bytes;
}

OwnedFd open_folder(const std::string& folder) {
  return OwnedFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

/// Throws an error if another process has given the name to another folder than `initial_id`.
void check_not_replaced(const std::string& folder, const std::optional<FolderId>& initial_id) {
  if (folder_id_of(folder) == initial_id) return;
  throw Error(
      ExitCode::kEnvironment,
      cat(folder, ": another process ", initial_id ? "replaced" : "wrote",
          " it while this one was writing it"),
      "check what the folder contains now; then either run the command again, which replaces it, "
      "or choose another folder");
}

/// Renames the old folder out of the way and `new_folder` to its name; returns the old folder's new
/// path.
std::string move_aside(FileSystem& files, const std::string& new_folder,
                       const std::string& folder) {
  const std::string aside = make_unique_name(folder, kReplaced);
  files.rename(folder, aside);
  try {
    files.rename(new_folder, folder);
  } catch (const Error&) {
    try {
      files.rename(aside, folder);
    } catch (const Error&) {  // recover_folders() will do this
    }
    throw;
  }
  return aside;
}

}  // namespace

std::string parent_folder(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string make_temporary_path(const std::string& folder) {
  return make_unique_name(folder);
}

std::string move_into_place(FileSystem& files, const std::string& new_folder,
                            const std::string& folder) {
  if (files.exists(folder))
    return files.swap_names(new_folder, folder) ? new_folder
                                                : move_aside(files, new_folder, folder);
  files.rename(new_folder, folder);
  return "";
}

void replace_folder(FileSystem& files, const std::string& new_folder, const std::string& folder,
                    std::string_view marker_file, const std::optional<FolderId>& initial_id) {
  check_not_replaced(folder, initial_id);
  std::string old_folder;
  try {
    if (initial_id)
      old_folder = move_into_place(files, new_folder, folder);
    else
      files.rename(new_folder, folder);  // fails if another process has made it meanwhile
  } catch (const Error&) {
    check_not_replaced(folder, initial_id);
    throw;
  }
  if (sync_or_warn(files, folder, old_folder))
    remove_replaced(files, old_folder, folder, marker_file);
}

void remove_replaced(FileSystem& files, const std::string& old_folder, const std::string& folder,
                     std::string_view marker_file) {
  if (!old_folder.empty())
    remove_or_warn(files, old_folder, folder, marker_file, "was replaced; what it was before");
}

std::optional<LeftoverFolder> parse_leftover_name(std::string_view name) {
  if (auto original = strip_unique_suffix(name)) return LeftoverFolder{*std::move(original), false};
  if (auto original = strip_unique_suffix(name, kReplaced))
    return LeftoverFolder{*std::move(original), true};
  return std::nullopt;
}

void recover_folders(FileSystem& files, const std::string& parent, const IsOurs& is_ours,
                     std::string_view marker_file) {
  bool changed = false;
  each_leftover(files, parent, is_ours,
                [&](const std::string& path, const std::string& original, bool is_restored) {
                  if (is_restored)
                    files.rename(path, original);
                  else
                    remove_or_warn(files, path, original, marker_file,
                                   "what an earlier process left");
                  changed = true;
                });
  if (changed) files.sync_folder(parent);
}

int64_t leftover_bytes(FileSystem& files, const std::string& parent, const IsOurs& is_ours) {
  int64_t bytes = 0;
  each_leftover(files, parent, is_ours,
                [&](const std::string& path, const std::string&, bool is_restored) {
                  if (!is_restored) bytes += tree_bytes(path);
                });
  return bytes;
}

OwnedFd lock_folder(const std::string& folder) {
  OwnedFd held = open_folder(folder);
  if (held) static_cast<void>(::flock(held.get(), LOCK_EX | LOCK_NB));
  return held;
}

bool is_locked(const std::string& folder) {
  const OwnedFd seen = open_folder(folder);
  return seen && ::flock(seen.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace ftrun
