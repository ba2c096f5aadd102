#pragma once

#include <iosfwd>
#include <optional>

#include "base/error.h"
#include "cluster/launch_environment.h"
#include "config_source.h"
#include "program/step_plan.h"
#include "report/memory_limit.h"

namespace ftrun {

/// Returns the number of ranks of this run on this machine.
int64_t local_ranks(const LoadedConfig& loaded, const LaunchEnvironment& launch);

/// Refuses before anything starts a run that cannot fit: Error(kEnvironment) when its ranks on this
/// machine need more main memory than there is, or more of the disk at nvme_path than is free, with
/// the changes of the config that save most. Returns a warning ("" for none) when it needs more
/// memory than is free now.
std::string admit_memory(const LoadedConfig& loaded, const StepPlan& step, int64_t local,
                         const MemoryLimit& limit);

/// Returns why the disk tier of `local` ranks of this machine cannot lie at nvme_path: it is not a
/// folder to write to, or has too little room.
std::optional<Error> disk_problem(const LoadedConfig& loaded, const StepPlan& plan, int64_t local);

/// Prints why this machine could not run `local` ranks of the config, with what helps: its memory
/// and that of this process's control group, the address space of a process, the disk tier. Returns
/// false where nothing prevents it. The reasons are those for which a run would be refused;
/// commands that start no run call it.
bool print_machine_problems(std::ostream& out, const LoadedConfig& loaded, const StepPlan& plan,
                            int64_t local, const MemoryLimit& limit);

}  // namespace ftrun
