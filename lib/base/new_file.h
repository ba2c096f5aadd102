#pragma once

#include <string>
#include <string_view>

namespace ftrun {

/// Writes a new file whole or not at all, for this user only: a unique name in the same folder,
/// sync, a move that replaces nothing, sync of the folder. Error(kUsage) where something of that
/// name exists, even if it came meanwhile; it stays as it is. Error(kEnvironment) where the disk
/// fails.
void write_new_file(const std::string& path, std::string_view content);

}  // namespace ftrun
