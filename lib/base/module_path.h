#pragma once

#include <string>

namespace ftrun {

/// Returns the path of a module of this installation: beside the library or program that `symbol`
/// is part of, or in ../lib of a program that is not beside it. The file may be missing.
std::string module_path(const void* symbol, const std::string& file);

}  // namespace ftrun
