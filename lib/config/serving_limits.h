#pragma once

#include <string>

#include "config/config.h"

namespace ftrun {

/// Describes the reasons why vLLM cannot serve an adapter as it is trained: settings that its
/// reader of PEFT folders refuses (use_dora, modules_to_save, biases) or drops (ranks and alphas of
/// single modules), and the --max-lora-rank that it must be started with. "" for an adapter that it
/// serves unchanged. Source: vLLM's lora/peft_helper.py, lora/utils.py and config/lora.py.
std::string serving_limits(const AdapterConfig& adapter);

}  // namespace ftrun
