#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/folder_id.h"
#include "base/owned_fd.h"

namespace ftrun {

/// The functions of this header replace a folder as a whole, for checkpoints and exports alike. The
/// new folder is written and synced under the name that make_temporary_path() gives, then renamed
/// to its final name. If the file system can swap two names, the final name always belongs to a
/// complete folder. Otherwise the old folder is renamed first; if the process is killed between the
/// two renames, recover_folders() puts the old folder back at the next start.

/// Makes a name for a folder that is being written or removed: "FOLDER.tmp-1a2b3c4d".
std::string make_temporary_path(const std::string& folder);

/// Renames the synced folder `new_folder` to `folder`, which has the same parent. Returns the new
/// path of the folder that had the name, "" if there was none. Pass it to remove_replaced() once
/// the parent is synced.
std::string move_into_place(FileSystem& files, const std::string& new_folder,
                            const std::string& folder);

/// Removes the folder that move_into_place(files, ..., folder) returned. The entry called
/// `marker_file` is removed last, so that a folder whose removal was interrupted is still
/// recognized as ours. A failure is logged as a warning.
void remove_replaced(FileSystem& files, const std::string& old_folder, const std::string& folder,
                     std::string_view marker_file = "");

/// Calls move_into_place(), syncs the parent and calls remove_replaced(). `initial_id` is the id of
/// the folder that had the name when the writing of `new_folder` began: if two processes write the
/// same folder, the first to finish succeeds and the other fails. Throws Error(kEnvironment) only
/// before the new folder is in place. If the parent cannot be synced afterwards, logs a warning and
/// keeps what was replaced.
void replace_folder(FileSystem& files, const std::string& new_folder, const std::string& folder,
                    std::string_view marker_file, const std::optional<FolderId>& initial_id);

/// LeftoverFolder describes a folder that a killed process left, as read from its name:
/// "NAME.tmp-1a2b3c4d" is unfinished or was being removed, "NAME.replaced-1a2b3c4d" is complete.
/// These names are on disk: do not change them.
struct LeftoverFolder {
  /// The final name, NAME.
  std::string original;
  bool complete = false;
};
std::optional<LeftoverFolder> parse_leftover_name(std::string_view name);

/// IsOurs returns whether ftrun wrote the leftover at `path` and no process is writing it.
using IsOurs = std::function<bool(const LeftoverFolder& leftover, const std::string& path)>;

/// Renames complete leftovers below `parent` back to their final names, if these are free, and
/// removes the others as remove_replaced() does. It touches only leftovers that `is_ours` accepts.
void recover_folders(FileSystem& files, const std::string& parent, const IsOurs& is_ours,
                     std::string_view marker_file = "");

/// Returns the bytes on disk that recover_folders() would free. Changes nothing.
int64_t leftover_bytes(FileSystem& files, const std::string& parent, const IsOurs& is_ours);

/// Marks a folder as in use until the result is closed; other processes see this with is_locked().
/// On a network file system only processes of this machine see it, and if folders cannot be locked,
/// no process does. Never waits.
[[nodiscard]] OwnedFd lock_folder(const std::string& folder);
bool is_locked(const std::string& folder);

/// Returns the folder that holds `path`: "." for a bare name.
std::string parent_folder(const std::string& path);

}  // namespace ftrun
