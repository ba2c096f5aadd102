#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// Every valid wish of a resolved config that this build cannot fulfil.
std::vector<NotYet> missing_capabilities(const Config& config);

/// Features that the config asks of GPUs and that have run on emulated ones
/// alone, as texts of a notice.
std::vector<std::string> only_emulated_on_gpus(const Config& config);
/// Says whether a key asks for such a feature.
bool only_emulated_on_gpus(const std::string& path);

/// Finds where a wish of the key is written: a degree of `parallel` may have come by another name.
Position place_of(const Config& config, const std::string& key);

/// Lists what of the key at `path` (as "parallel.tensor") cannot run yet, for the reference: the
/// choices that are refused, else the feature; empty when all of it runs.
std::string not_yet_of(const std::string& path);

}  // namespace ftrun
