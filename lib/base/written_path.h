#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>

#include "base/owned_fd.h"

namespace ftrun {

/// The functions of this header open paths that are written to. Another user who may write to a
/// folder of the path could put a link there between a check of the path and its use. Files would
/// then be made, replaced or removed elsewhere with this user's rights. So the path is walked
/// folder by folder, each opened relative to the one before it, and a link is followed only if
/// may_follow_link() allows it. The operation at the path's end is relative to the open folder.

/// Returns whether `user` may follow a link in `folder`: the link is the user's own or root's, or
/// nobody but the folder's owner may write to the folder.
bool may_follow_link(const struct stat& link, const struct stat& folder, uid_t user);

/// Opens a folder (O_PATH) in this way; the result is empty, with errno set, if that fails. Throws
/// Error(kEnvironment) for a link that must not be followed.
OwnedFd open_folder_safely(const std::string& folder);

/// FolderEntry is an open folder and the name of an entry in it.
struct FolderEntry {
  /// The open folder; empty, with errno set, if it could not be opened.
  OwnedFd folder;
  std::string name;
};
/// Opens the folder that holds the last name of a path. Throws Error(kEnvironment) as
/// open_folder_safely() does.
FolderEntry open_parent(const std::string& path);

/// Opens a file to create or write it, but never through a link of its own name. The result is
/// empty, with errno set, if that fails; throws Error(kEnvironment) as open_folder_safely() does.
OwnedFd open_to_write(const std::string& path, int flags, mode_t mode);

/// Removes a file, a link, or a folder with all its contents. Returns 0, or the errno of the entry
/// that could not be removed; a missing path is not a failure.
int remove_tree(const std::string& path);

}  // namespace ftrun
