#pragma once

#include <string>

namespace ftrun {

/// Sets the environment variables that NCCL reads when it opens, unless the user has set them. They
/// disable sums inside NVSwitches (NVLS), whose order changes from run to run (NVIDIA/nccl#1497).
/// They make NCCL connect when a group opens and not within the group's first collective, where no
/// time limit of ftrun would apply. For the same reason the memory of captured collectives is not
/// registered with peers during the capture. Call it before the process starts threads.
void prepare_nccl_environment();

/// Returns why `ranks` ranks of one machine cannot share memory in the folder that NCCL uses for it
/// (it does not exist, cannot be written to, or has too little room), with a remedy; "" if there is
/// no problem. This is only a warning, because GPUs that can access each other's memory do not need
/// the folder.
std::string shared_folder_warning(int ranks, const std::string& folder = "/dev/shm");

}  // namespace ftrun
