#pragma once

#include <string>

#include "config/node.h"

namespace ftrun {

/// Says whether a file is one that Hugging Face Accelerate's launcher reads (`accelerate launch
/// --config_file`).
bool is_accelerate(const Node& root);

/// The file whose DeepSpeed config it is to use, or null.
const Node* accelerate_config_file(const Node& root);

/// Translates an Accelerate file into keys of the schema: its deepspeed_config block, process count
/// and precision. `named` is the content of accelerate_config_file(), an empty section where there
/// is none; it is merged before. Keys that are not Accelerate's stay as they are; those without
/// meaning here are named in a notice. An error where it asks for FSDP or another back end.
Node from_accelerate(const Node& root, const Node& named, Problems& problems);

}  // namespace ftrun
