#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "config/config.h"
#include "engine/gpu.h"

namespace ftrun {

/// Returns the number of a rank's GPU among the GPUs that its process sees: the local rank, or 0 if
/// the launcher shows each process a single GPU (check_distinct_gpus() then checks that the ranks
/// have different GPUs). Throws Error(kUsage) if the process sees several GPUs, but not one for
/// each local rank.
int gpu_of_rank(int local_rank, int visible_gpus);

/// Opens the rank's GPU with the options of the config. Throws Error(kUnsupported) for a build
/// without CUDA or a GPU that is too old, Error(kEnvironment) without a driver, and Error(kUsage)
/// as gpu_of_rank() does.
std::unique_ptr<Gpu> open_gpu(const Config& config, const LaunchEnvironment& launch);

/// Returns the label of a GPU, "GPU-5f3c... (0000:1B:00.0 of host)"; the part before the first
/// blank is unique to the device.
std::string gpu_label(const DeviceInfo& gpu, const std::string& host);

/// Throws Error(kUsage) if two ranks share a GPU, and names both. `labels` holds gpu_label() of
/// each rank.
void check_distinct_gpus(const std::vector<std::string>& labels);

}  // namespace ftrun
