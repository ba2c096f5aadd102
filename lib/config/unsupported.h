#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// Lists every valid request of a resolved config that this build cannot fulfill.
std::vector<UnsupportedRequest> unsupported_requests(const Config& config);

/// Lists, as texts of a notice, features that the config requests on GPUs and that have run only on
/// emulated GPUs.
std::vector<std::string> features_only_emulated_on_gpus(const Config& config);
/// Returns whether a key requests such a feature.
bool is_only_emulated_on_gpus(const std::string& path);

/// Returns the position where a key's request is written: a degree of `parallel` may have been set
/// by another key.
Position position_of_request(const Origins& origins, const std::string& key);

/// Describes, for the config reference, what cannot run yet of the key at `path`
/// ("parallel.tensor"): the choices that are refused, else the feature. Returns "" if all of it
/// runs.
std::string unsupported_part(const std::string& path);

}  // namespace ftrun
