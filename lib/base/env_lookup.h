#pragma once

#include <functional>
#include <optional>
#include <string>

namespace ftrun {

/// Value of an environment variable; nothing when it is unset.
using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// The variables of this process.
EnvLookup process_environment();

}  // namespace ftrun
