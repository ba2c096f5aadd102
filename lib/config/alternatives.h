#pragma once

#include "config/node.h"

namespace ftrun {

/// Takes out of `base` what `over`, a source that is read after it, says in another key: of two
/// keys that cannot both stand, the one that is set later takes the place of the other, with a
/// notice. Where one source has both, both stay, and resolve() names the contradiction.
void replace_alternatives(Node& base, const Node& over, Problems& problems);

}  // namespace ftrun
