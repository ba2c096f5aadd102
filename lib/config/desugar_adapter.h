#pragma once

#include "config/node.h"

namespace ftrun {

/// Rewrites an `adapter` section in PEFT's spellings into the keys of the schema. Fields that
/// change what is computed and that ftrun does not have are errors; in a file of PEFT (`of_peft`)
/// those that change nothing are dropped.
void desugar_adapter(Node& root, bool of_peft, Problems& problems);

/// Refuses what bitsandbytes' words in a `quantization` section ask for and is not done.
void desugar_quantization(Node& root, Problems& problems);

}  // namespace ftrun
