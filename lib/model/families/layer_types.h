#pragma once

#include <cstdint>

#include "model/config_reader.h"
#include "model/model_config.h"

namespace ftrun {

/// Reads `sliding_window` in tokens: null = 0 (none), absent = transformers' default.
int64_t read_window(ConfigReader& reader);

/// Gives the window to all layers except every `period`-th. Records a problem if the window is 0.
void set_periodic_windows(ConfigReader& reader, ModelConfig& config, int64_t window,
                          int64_t period);

/// Sets config.windows from `layer_types` when config.json has it ("sliding_attention" layers get
/// `window`, "full_attention" layers none). Returns false if config.json has no layer_types.
bool read_layer_types(ConfigReader& reader, ModelConfig& config, int64_t window);

}  // namespace ftrun
