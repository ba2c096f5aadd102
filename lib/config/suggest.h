#pragma once

#include <string>
#include <vector>

namespace ftrun {

/// Returns " (did you mean \"stage\"?)" for a key that `section` does not have, or "".
std::string key_suggestion(const std::string& section, const std::string& key,
                           const std::vector<std::string>& candidates);

}  // namespace ftrun
