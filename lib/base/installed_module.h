#pragma once

#include <string>

namespace ftrun {

/// Returns the path of a module of this installation: in the folder of the library or program that
/// contains `symbol` or, if the module is not there, in ../lib. The file may be missing.
std::string installed_module_path(const void* symbol, const std::string& file);

}  // namespace ftrun
