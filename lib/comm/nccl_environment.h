#pragma once

#include <string>

namespace ftrun {

/// Sets the environment variables that NCCL reads when it opens, unless the user has: no sums
/// inside NVSwitches (NVLS), whose order changes from run to run (NVIDIA/nccl#1497), and
/// connections made when a group opens and not within its first collective, where no time limit of
/// ours would cover them. For the same reason memory of recorded collectives is not registered with
/// peers while they are recorded. Call it before there are threads.
void prepare_nccl_environment();

/// Returns why this many ranks of one machine cannot share memory in the folder where NCCL puts it:
/// the folder does not exist, cannot be written to, or has too little room; with a remedy. A
/// warning: GPUs that reach each other's memory need none. "" where there is no problem.
std::string shared_folder_warning(int ranks, const std::string& folder = "/dev/shm");

}  // namespace ftrun
