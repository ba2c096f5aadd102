#pragma once

#include <string>
#include <string_view>

namespace ftrun {

/// Writes a new file whole or not at all, for this user only: it writes under a unique name in the
/// same folder, syncs, renames without replacing anything, and syncs the folder. Throws
/// Error(kUsage) where the name exists, even if it was made meanwhile, and leaves that file as it
/// is. Throws Error(kEnvironment) where the disk fails.
void write_new_file(const std::string& path, std::string_view content);

}  // namespace ftrun
