#pragma once

#include <string>
#include <string_view>

namespace ftrun {

/// Writes a new file completely or not at all, for this user only: writes under a unique name in
/// the same folder, syncs, renames without replacing anything, and syncs the folder. Throws
/// Error(kUsage) if the name exists, even if it was made meanwhile, and leaves that file unchanged.
/// Throws Error(kEnvironment) if the disk fails.
void write_new_file(const std::string& path, std::string_view content);

}  // namespace ftrun
