#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ftrun {

/// FolderId identifies the folder that has a certain name at a certain time.
struct FolderId {
  uint64_t device = 0;
  uint64_t inode = 0;
  bool operator==(const FolderId&) const = default;
};

/// Returns the id of the folder that has this name now; nothing if it cannot be examined.
std::optional<FolderId> folder_id_of(const std::string& folder);

}  // namespace ftrun
