#pragma once

#include <string>
#include <vector>

#include "engine/bench_machine.h"
#include "inputs/train_request.h"

namespace ftrun {

/// Loads the engine (LibTorch and the code that needs it), once in a process. Only ranks and their
/// supervisor load LibTorch, so other commands start at once; ranks share the supervisor's pages.
/// Loading starts no thread and uses no device. Error(kEnvironment) where the engine is missing or
/// of another version.
void load_engine();

/// Returns the folder of the LibTorch of this build's version, wherever it is installed
/// (base/torch_folder.h). Error(kEnvironment) where it is missing.
std::string torch_folder();
/// Returns the folders of LibTorch's libraries, for open_library(); none where there is no
/// LibTorch.
std::vector<std::string> library_folders();

/// Returns whether this installation has the CUDA kernels, without loading anything.
bool has_cuda_module();

/// Trains as one rank; loads the engine if it is not loaded yet.
int train_with_engine(const TrainRequest& request);

/// Measures this machine with the engine, which is loaded if it is not loaded yet.
Machine bench_with_engine(const BenchRequest& request);

/// Ends the process with main's result. If the engine was loaded, it does not return: it flushes
/// output and ends the process without running the destructors of LibTorch, which would remove the
/// tables of operators entry by entry, in half the time that loading them took.
int end_process(int exit_code);

}  // namespace ftrun
