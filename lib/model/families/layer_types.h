#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/config_reader.h"

namespace ftrun {

/// What transformers takes where `sliding_window` is absent, in tokens.
inline constexpr int64_t kDefaultWindow = 4096;

/// The window of a config that says `sliding_window`: null = 0 (none), absent = `fallback` tokens.
int64_t read_window(ConfigReader& reader, int64_t fallback);

/// Sets config.windows from `layer_types` when config.json has it ("sliding_attention" layers get
/// `window`, "full_attention" layers none). Returns false when it has not.
bool read_layer_types(ConfigReader& reader, ModelConfig& config, int64_t window);

}  // namespace ftrun
