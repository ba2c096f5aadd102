#pragma once

#include <string>

#include "report/run_manifest.h"

namespace ftrun {

/// Returns the facts about this binary's build: sources, compiler and libraries.
BuildInfo build_info();

/// Returns the folder of the torch package with which this program was built; "" for a build
/// without the engine.
std::string torch_folder_of_build();

/// Returns the architectures for which the CUDA kernels are compiled: "80 90".
std::string gpu_architectures();

}  // namespace ftrun
