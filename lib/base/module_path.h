#pragma once

#include <string>

namespace ftrun {

/// Path of a module of ours (`file`: "libftrun_cuda.so") that is opened by name: beside the library
/// that holds `symbol`, or in ../lib of a program that does.
std::string module_path(const void* symbol, const std::string& file);

}  // namespace ftrun
