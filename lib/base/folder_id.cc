#include "base/folder_id.h"

#include <sys/stat.h>

namespace ftrun {

std::optional<FolderId> folder_id_of(const std::string& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) return std::nullopt;
  return FolderId{static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino)};
}

}  // namespace ftrun
