#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// Lists every valid wish of a resolved config that this build cannot fulfil.
std::vector<NotYet> missing_capabilities(const Config& config);

/// Lists features that the config asks of GPUs and that have run only on emulated ones, as texts of
/// a notice.
std::vector<std::string> only_emulated_on_gpus(const Config& config);
/// Says whether a key asks for such a feature.
bool only_emulated_on_gpus(const std::string& path);

/// Finds where a wish of the key is written: a degree of `parallel` may have come from another key.
Position place_of(const Origins& origins, const std::string& key);

/// Describes the part of the key at `path` (as "parallel.tensor") that cannot run yet, for the
/// reference: the choices that are refused, else the feature; empty when all of it runs.
std::string not_yet_of(const std::string& path);

}  // namespace ftrun
