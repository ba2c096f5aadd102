#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "config/config.h"
#include "engine/gpu.h"

namespace ftrun {

/// Returns the number of a rank's GPU among those that its process sees: its own, or the only one
/// where the launcher shows each process one (require_own_gpus() then checks that these differ).
/// Error(kUsage) when it sees several, but fewer than ranks of the machine.
int gpu_of_rank(int local_rank, int visible);

/// Opens the rank's GPU as the config asks. Error(kUnsupported) for a build without CUDA and a GPU
/// that is too old, Error(kEnvironment) without a driver, Error(kUsage) as gpu_of_rank().
std::unique_ptr<Gpu> open_gpu(const Config& config, const LaunchEnvironment& launch);

/// Returns "GPU-5f3c... (0000:1B:00.0 of host)": the part before the first blank is unique to the
/// device.
std::string gpu_place(const DeviceInfo& gpu, const std::string& host);

/// Refuses ranks that share a GPU with Error(kUsage) naming two of them. `places` says which GPU
/// each rank has, by rank.
void require_own_gpus(const std::vector<std::string>& places);

}  // namespace ftrun
