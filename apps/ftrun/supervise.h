#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "config_source.h"
#include "inputs/train_request.h"

namespace ftrun {

/// The number of consecutive restarts without a new checkpoint that a run on one node may take if
/// --restarts is not given.
inline constexpr int kDefaultRestarts = 3;

/// Starts the ranks of this machine, waits for them and, if `restarts` allows it, restarts them
/// from the newest checkpoint; with fewer ranks if one keeps failing and `loaded` allows that.
/// `restarts` is the maximum number of consecutive restarts without a new checkpoint; the default
/// is kDefaultRestarts, and 0 for several nodes, which would have to restart together. Returns the
/// exit code.
int supervise(const std::vector<std::string>& arguments, const ConfigSource& source,
              const LoadedConfig& loaded, const LaunchEnvironment& launch,
              const ResumeRequest& resume, std::optional<int> restarts);

/// Returns the resume request of a rank that our supervisor restarted, which replaces the one on
/// the command line. In other processes returns `requested`.
ResumeRequest resume_for_this_start(ResumeRequest requested, const LaunchEnvironment& launch);

}  // namespace ftrun
