#pragma once

#include "config/config.h"
#include "model/adapter.h"

namespace ftrun {

/// Converts the section adapter to the terms of make_adapter().
LoraOptions lora_options(const AdapterConfig& config);

}  // namespace ftrun
