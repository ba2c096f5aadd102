#pragma once

#include <string>

#include "cluster/launch_environment.h"

namespace ftrun {

/// Counts the NVIDIA GPUs that this process may see, without using the driver's libraries or
/// touching a device: the files of GPUs in `devices`, or those that CUDA_VISIBLE_DEVICES names.
/// Returns 0 if there is no driver. Under WSL, Windows shows all its GPUs to Linux programs as one
/// file, which counts as one GPU.
int count_visible_gpus(const EnvLookup& env, const std::string& devices = "/dev");

}  // namespace ftrun
