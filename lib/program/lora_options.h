#pragma once

#include "config/config.h"
#include "model/adapter.h"

namespace ftrun {

/// Converts the config section `adapter` to the options of make_adapter().
LoraOptions lora_options(const AdapterConfig& config);

}  // namespace ftrun
