#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "engine/bench_machine.h"
#include "inputs/train_request.h"

namespace ftrun {

/// Loads the engine (LibTorch and the code that needs it), once per process. Only ranks, their
/// supervisor and `bench machine` load LibTorch, so other commands start quickly; ranks share the
/// supervisor's memory pages. Loading starts no thread and uses no device. Throws
/// Error(kEnvironment) if the engine is missing or has another version.
void load_engine();

/// Loads the engine and, if the ranks of a config train on CPUs, compiles the kernels that multiply
/// matrices in fp32, so that each rank which this process forks has both.
void prepare_engine_for_ranks(const Config& config);

/// Returns the folder of the installed LibTorch that has this build's version
/// (base/torch_folder.h). Throws Error(kEnvironment) if there is none.
std::string torch_folder();
/// Returns the folders of LibTorch's libraries, for open_library(); none if there is no LibTorch.
std::vector<std::string> library_folders();

/// Returns whether this installation has the CUDA kernels, without loading anything.
bool has_cuda_module();

/// Trains as one rank; loads the engine if it is not loaded yet.
int train_with_engine(const TrainRequest& request);

/// Measures this machine; loads the engine if it is not loaded yet.
Machine bench_with_engine(const BenchRequest& request);

/// Ends the process with main's result. If the engine was loaded, the function does not return: it
/// flushes output and ends the process without running LibTorch's destructors. These would remove
/// the tables of operators entry by entry, which takes half as long as loading them.
int end_process(int exit_code);

}  // namespace ftrun
