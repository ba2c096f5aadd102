#pragma once

#include <string>

#include "config/node.h"

namespace ftrun {

/// Says whether Hugging Face Accelerate's launcher reads such a file (`accelerate launch
/// --config_file`).
bool is_accelerate(const Node& root);

/// Finds the value that names the DeepSpeed config file to use, or null.
const Node* accelerate_config_file(const Node& root);

/// Translates an Accelerate file into keys of the schema: its deepspeed_config block, process count
/// and precision. `named` is the content of accelerate_config_file(), an empty section if there is
/// none; it is merged before. Keys that are not Accelerate's stay unchanged; a notice names those
/// that have no meaning here. A file that asks for FSDP or another back end is an error.
Node from_accelerate(const Node& root, const Node& named, Problems& problems);

}  // namespace ftrun
