#pragma once

#include <string>

#include "config/config_node.h"

namespace ftrun {

/// Returns whether the file is one that Hugging Face Accelerate's launcher reads (`accelerate
/// launch --config_file`).
bool is_accelerate(const ConfigNode& root);

/// Finds the value that names the DeepSpeed config file to use, or null.
const ConfigNode* accelerate_config_file(const ConfigNode& root);

/// Translates an Accelerate file into keys of the schema: its deepspeed_config block, process count
/// and precision. `named` is the content of accelerate_config_file(), an empty section if there is
/// none; it is merged first. Keys that are not Accelerate's stay unchanged; a notice names keys
/// that have no meaning here. A file that requests FSDP or another backend is an error.
ConfigNode from_accelerate(const ConfigNode& root, const ConfigNode& named, Problems& problems);

}  // namespace ftrun
