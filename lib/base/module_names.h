#pragma once

#include <string>
#include <string_view>

namespace ftrun {

/// The entry of target_modules that chooses all linear layers of blocks.
inline constexpr std::string_view kAllLinear = "all-linear";

/// Returns whether a module's path is equal to the entry, or ends with "." and the entry.
inline bool matches_path_suffix(const std::string& path, const std::string& entry) {
  return path == entry || path.ends_with("." + entry);
}

}  // namespace ftrun
