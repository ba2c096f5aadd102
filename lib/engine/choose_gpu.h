#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "config/config.h"
#include "engine/gpu.h"

namespace ftrun {

/// Number of the GPU of a rank among those that its process sees: its own, or the only one where
/// the launcher shows each process one (require_own_gpus() then tells whether it is another one
/// each time). Error(kUsage) when it sees several, but fewer than ranks of the machine.
int gpu_of_rank(int local_rank, int visible);

/// Opens the rank's GPU as the config asks. Error(kUnsupported) for a build without CUDA and a GPU
/// that is too old, Error(kEnvironment) without a driver, Error(kUsage) as gpu_of_rank().
std::unique_ptr<Gpu> open_gpu(const Config& config, const LaunchEnvironment& launch);

/// "GPU-5f3c... (0000:1B:00.0 of host)": what comes before the first blank is the device's alone.
std::string gpu_place(const DeviceInfo& gpu, const std::string& host);

/// Ranks may not share a GPU. `places` says which GPU each rank has, by rank. Error(kUsage) naming
/// two that have the same.
void require_own_gpus(const std::vector<std::string>& places);

}  // namespace ftrun
