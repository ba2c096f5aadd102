#pragma once

#include "config/config_node.h"

namespace ftrun {

/// Removes from `base` the keys that `over`, a source that is read after it, replaces by other
/// keys: of two keys that cannot both stand, the later one replaces the other, with a notice. If
/// one source has both, both stay, and resolve() reports the contradiction.
void replace_alternatives(ConfigNode& base, const ConfigNode& over, Problems& problems);

}  // namespace ftrun
