#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "config/config.h"
#include "engine/gpu.h"

namespace ftrun {

/// Returns the number of a rank's GPU among the GPUs that its process sees: the local rank, or 0
/// where the launcher shows each process a single GPU (require_own_gpus() then checks that these
/// differ). Throws Error(kUsage) when the process sees several, but fewer than the machine has
/// ranks.
int gpu_of_rank(int local_rank, int visible);

/// Opens the rank's GPU as the config asks. Error(kUnsupported) for a build without CUDA and a GPU
/// that is too old, Error(kEnvironment) without a driver, Error(kUsage) as gpu_of_rank().
std::unique_ptr<Gpu> open_gpu(const Config& config, const LaunchEnvironment& launch);

/// Returns the label of a GPU, "GPU-5f3c... (0000:1B:00.0 of host)"; the part before the first
/// blank is unique to the device.
std::string gpu_label(const DeviceInfo& gpu, const std::string& host);

/// Throws Error(kUsage) if two ranks share a GPU, naming both. `labels` holds gpu_label() of each
/// rank.
void require_own_gpus(const std::vector<std::string>& labels);

}  // namespace ftrun
