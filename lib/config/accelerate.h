#pragma once

#include <string>

#include "config/config_node.h"

namespace ftrun {

/// Returns whether the file is one that Hugging Face Accelerate's launcher reads (`accelerate
/// launch --config_file`).
bool is_accelerate_file(const ConfigNode& root);

/// Finds the value that names the DeepSpeed config file to use, or null.
const ConfigNode* find_deepspeed_config_file(const ConfigNode& root);

/// Translates an Accelerate file into keys of the schema: its deepspeed_config block, process count
/// and precision. `deepspeed_config` is the content of the file that find_deepspeed_config_file()
/// names, an empty section if there is none; it is merged first. Keys that are not Accelerate's
/// stay unchanged; a notice names keys that have no meaning here. A file that requests FSDP or
/// another backend is an error.
ConfigNode translate_accelerate_file(const ConfigNode& root, const ConfigNode& deepspeed_config,
                                     Problems& problems);

}  // namespace ftrun
