#pragma once

#include "config/node.h"

namespace ftrun {

/// Rewrites one source's aliases and deprecated spellings into the keys of the schema, so that
/// sources can be merged key by key. Two spellings of one key in one source are an error.
void desugar(Node& root, Problems& problems);

}  // namespace ftrun
