#pragma once

#include <string>

namespace ftrun {

/// Sets what NCCL reads from the environment when it opens, where the user has not: no sums inside
/// NVSwitches (NVLS), whose order changes from run to run (NVIDIA/nccl#1497), and connections made
/// when a group opens and not within its first collective, where no time limit of ours would cover
/// them. For the same reason memory of recorded collectives is not registered with peers while they
/// are recorded. Call it before there are threads.
void prepare_nccl_environment();

/// Says what keeps so many ranks of this machine from sharing memory in the folder where NCCL puts
/// it: it is not there, cannot be written to, or has too little room; with what helps. A warning:
/// GPUs that reach each other's memory need none. "" where nothing is in the way.
std::string shared_folder_warning(int ranks, const std::string& folder = "/dev/shm");

}  // namespace ftrun
