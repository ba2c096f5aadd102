#pragma once

#include <iosfwd>
#include <optional>

#include "base/error.h"
#include "base/memory_limit.h"
#include "cluster/launch_environment.h"
#include "config_source.h"
#include "program/step_plan.h"

namespace ftrun {

/// Returns the number of ranks of this run on this machine.
int64_t local_ranks(const LoadedConfig& loaded, const LaunchEnvironment& launch);

/// Returns a warning if the run needs more memory than is free now, else "". Called before anything
/// starts, to refuse a run that cannot fit: throws Error(kEnvironment) if the ranks on this machine
/// need more main memory than there is, or more disk space at nvme_path than is free. The error
/// lists the changes of the config that save the most memory.
std::string check_memory(const LoadedConfig& loaded, const StepPlan& step, int64_t local_ranks,
                         const MemoryLimit& limit);

/// Returns the reason why nvme_path cannot hold the disk tier of `local_ranks` ranks of this
/// machine: it is not a folder that can be written to, or it has too little free space. Returns
/// nothing if it can.
std::optional<Error> disk_problem(const LoadedConfig& loaded, const StepPlan& plan,
                                  int64_t local_ranks);

/// Prints the reasons why this machine cannot run `local_ranks` ranks of the config, with remedies:
/// the memory of the machine or of this process's control group, the address space of a process, or
/// the disk tier. Returns false if there are none. A run would be refused for the same reasons;
/// this function is for commands that start no run.
bool print_machine_problems(std::ostream& out, const LoadedConfig& loaded, const StepPlan& plan,
                            int64_t local_ranks, const MemoryLimit& limit);

}  // namespace ftrun
