#pragma once

namespace ftrun {

/// Sets what NCCL reads from the environment when it opens, where the user has not: no sums inside
/// NVSwitches (NVLS), whose order changes from run to run (NVIDIA/nccl#1497), and connections made when
/// a group opens and not within its first collective, where no time limit of ours would cover them. For
/// the same reason memory of recorded collectives is not registered with peers while they are recorded.
/// Call it before there are threads.
void prepare_nccl_environment();

}  // namespace ftrun
