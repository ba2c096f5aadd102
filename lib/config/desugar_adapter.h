#pragma once

#include "config/config_node.h"

namespace ftrun {

/// Rewrites an `adapter` section in PEFT's spellings into the keys of the schema. Fields that
/// change the computation and that ftrun lacks are errors; in a PEFT file (`is_peft_file`) fields
/// that change nothing are dropped.
void desugar_adapter(ConfigNode& root, bool is_peft_file, Problems& problems);

/// Refuses settings of bitsandbytes in a `quantization` section that contradict its type or that
/// ftrun does not implement.
void desugar_quantization(ConfigNode& root, Problems& problems);

}  // namespace ftrun
