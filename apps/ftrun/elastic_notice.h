#pragma once

#include <optional>
#include <string>

#include "cluster/launch_environment.h"
#include "config_source.h"

namespace ftrun {

/// Returns a notice about ranks that keep failing: that elasticity lets the run continue without
/// them, or why elastic.min_ranks has no effect on a run that is started in this way. Returns "" if
/// there is nothing to report. `restarts` is the value of --restarts.
std::string elastic_notice(const LoadedConfig& loaded, const LaunchEnvironment& launch,
                           std::optional<int> restarts);

}  // namespace ftrun
