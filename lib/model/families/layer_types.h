#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/config_reader.h"

namespace ftrun {

/// The window of a config that says `sliding_window`, in tokens: null = 0 (none), absent = what
/// transformers takes then.
int64_t read_window(ConfigReader& reader);

/// Gives all layers but every `period`-th the window, which there has to be.
void set_periodic_windows(ConfigReader& reader, ModelConfig& config, int64_t window,
                          int64_t period);

/// Sets config.windows from `layer_types` when config.json has it ("sliding_attention" layers get
/// `window`, "full_attention" layers none). Returns false when it has not.
bool read_layer_types(ConfigReader& reader, ModelConfig& config, int64_t window);

}  // namespace ftrun
