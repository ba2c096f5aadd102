#pragma once

#include "config/config_node.h"

namespace ftrun {

/// Removes from `base` the keys that contradict keys of `over`, a source that is read later, and
/// adds a notice for each. If one source has two keys that contradict each other, both stay, and
/// resolve() reports the contradiction.
void remove_contradicted_keys(ConfigNode& base, const ConfigNode& over, Problems& problems);

}  // namespace ftrun
