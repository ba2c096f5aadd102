#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "config_source.h"
#include "inputs/train_request.h"

namespace ftrun {

/// Starts the ranks of this machine, waits for them and, as `restarts` says, starts them again from
/// the newest checkpoint; with fewer ranks where `loaded` allows it and one keeps failing.
/// `restarts`: how often in a row without a new checkpoint; nothing: 3, and 0 where several nodes
/// would have to restart together. Returns the exit code.
int supervise(const std::vector<std::string>& arguments, const ConfigSource& source,
              const LoadedConfig& loaded, const LaunchEnvironment& launch,
              const ResumeRequest& resume, std::optional<int> restarts);

/// Returns what a rank that our supervisor started again resumes, in place of what its command line
/// says; `asked` in other processes.
ResumeRequest resume_of_restart(ResumeRequest asked, const LaunchEnvironment& launch);

}  // namespace ftrun
