#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>

#include "base/owned_fd.h"

namespace ftrun {

/// Paths that are written to. Whoever may write to a folder on the way could put a link there,
/// between a look at the path and its use, and have files made, replaced or removed elsewhere with
/// this user's rights. So such a path is walked folder by folder, each opened below the one before
/// it, and a link on the way counts only as link_counts() says. What is done at its end is done
/// relative to the open folder.

/// Says whether `user` follows a link that lies in `folder`: it is the user's own or root's, or
/// nobody but the folder's owner may write to the folder.
bool link_counts(const struct stat& link, const struct stat& folder, uid_t user);

/// Opens a folder (O_PATH) as above; empty with errno where that fails. Error(kEnvironment) for a
/// link that does not count.
OwnedFd open_on_the_way(const std::string& folder);

/// WrittenPath is the folder that holds the end of a path, and the end's name in it.
struct WrittenPath {
  /// Empty where it could not be opened, and errno says why.
  OwnedFd folder;
  std::string name;
};
/// Opens the folder that holds the end of a path. Error(kEnvironment) as open_on_the_way().
WrittenPath walk_to(const std::string& path);

/// Opens a file that is made or written, never through a link of its own name. Empty with errno
/// where that fails; Error(kEnvironment) as open_on_the_way().
OwnedFd open_to_write(const std::string& path, int flags, mode_t mode);

/// Removes a file, a link, or a folder with all in it. Returns 0, or the errno of what could not be
/// removed; a missing path is not a failure.
int remove_tree(const std::string& path);

}  // namespace ftrun
