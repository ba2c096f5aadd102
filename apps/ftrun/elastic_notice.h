#pragma once

#include <optional>
#include <string>

#include "cluster/launch_environment.h"
#include "config_source.h"

namespace ftrun {

/// Returns what a user may not expect of ranks that keep failing: that elasticity lets them leave,
/// or that elastic.min_ranks has no effect on a run that is started like this, and why. "" for
/// nothing. `restarts`: --restarts.
std::string elastic_notice(const LoadedConfig& loaded, const LaunchEnvironment& launch,
                           std::optional<int> restarts);

}  // namespace ftrun
