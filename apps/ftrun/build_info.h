#pragma once

#include <string>

#include "report/manifest.h"

namespace ftrun {

/// Returns what this binary was built from.
BuildInfo build_info();

/// Returns the torch package that this program was built with; "" for a build without the engine.
std::string torch_of_build();

/// Returns the architectures that the CUDA kernels are compiled for: "80 90".
std::string gpu_architectures();

}  // namespace ftrun
