#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// Lists every valid request of a resolved config that this build cannot fulfil.
std::vector<NotYet> missing_capabilities(const Config& config);

/// Lists features that the config requests on GPUs and that have run on emulated GPUs only, as
/// texts of a notice.
std::vector<std::string> only_emulated_on_gpus(const Config& config);
/// Returns whether a key requests such a feature.
bool only_emulated_on_gpus(const std::string& path);

/// Finds where the request of a key is written: a degree of `parallel` may have been set by another
/// key.
Position place_of(const Origins& origins, const std::string& key);

/// Describes for the config reference which part of the key at `path` ("parallel.tensor") cannot
/// run yet: the choices that are refused, else the feature. Returns "" when all of it runs.
std::string not_yet_of(const std::string& path);

}  // namespace ftrun
