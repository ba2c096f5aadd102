#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "config_source.h"
#include "inputs/train_request.h"

namespace ftrun {

/// Starts the ranks of this machine, waits for them and, if `restarts` allows it, restarts them
/// from the newest checkpoint; with fewer ranks if `loaded` allows it and one keeps failing.
/// `restarts` is the number of consecutive restarts without a new checkpoint; by default 3, and 0
/// if several nodes would have to restart together. Returns the exit code.
int supervise(const std::vector<std::string>& arguments, const ConfigSource& source,
              const LoadedConfig& loaded, const LaunchEnvironment& launch,
              const ResumeRequest& resume, std::optional<int> restarts);

/// Returns the checkpoint from which a rank resumes that our supervisor restarted, in place of its
/// command line's; in other processes it returns `asked`.
ResumeRequest resume_of_restart(ResumeRequest asked, const LaunchEnvironment& launch);

}  // namespace ftrun
