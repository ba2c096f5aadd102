#pragma once

#include <string>

namespace ftrun {

/// Path of a module of this installation: beside the library or program that `symbol` is part
/// of, or in ../lib of a program that is not beside it. It may not be there.
std::string module_path(const void* symbol, const std::string& file);

}  // namespace ftrun
