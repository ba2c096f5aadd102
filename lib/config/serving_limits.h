#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// Describes, a line for each server, what keeps it from serving an adapter as it is trained. No
/// lines for an adapter that all of them serve unchanged.
///   * vLLM refuses use_dora, modules_to_save and biases, drops ranks and alphas of single modules,
///     and must be started with a --max-lora-rank of at least r (its lora/peft_helper.py,
///     lora/utils.py and config/lora.py).
///   * llama.cpp adds alpha / r times B A to a product and nothing else; scripts/export_gguf.py
///     refuses what it has no place for (scripts/gguf_models/adapter.py), and an adapter of a base
///     that was quantized in training, which it does not have.
std::vector<std::string> serving_limits(const AdapterConfig& adapter, bool quantized_base = false);

}  // namespace ftrun
