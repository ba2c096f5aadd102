#pragma once

#include <string>

#include "report/manifest.h"

namespace ftrun {

/// Says what this binary was made of.
BuildInfo build_info();

/// The torch package that this program was built with; "" for a build without the engine.
std::string torch_of_build();

/// Architectures that the CUDA kernels are compiled for: "80 90".
std::string gpu_architectures();

}  // namespace ftrun
