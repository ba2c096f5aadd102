#pragma once

#include <functional>
#include <optional>
#include <string>

namespace ftrun {

/// EnvLookup returns the value of an environment variable; nothing if it is not set.
using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Returns the lookup of this process's variables.
EnvLookup process_environment();

}  // namespace ftrun
