#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// Describes the reasons why servers cannot serve an adapter as it is trained, one line per server.
/// Returns no lines for an adapter that all of them serve unchanged.
///   * vLLM refuses use_dora, modules_to_save and biases, drops ranks and alphas of single modules,
///     and must be started with a --max-lora-rank of at least r (its lora/peft_helper.py,
///     lora/utils.py and config/lora.py).
///   * llama.cpp adds alpha / r times B A to a linear layer and nothing else.
///     scripts/export_gguf.py refuses further settings (scripts/gguf_models/adapter.py), and
///     adapters that were trained on a quantized base.
std::vector<std::string> serving_limits(const AdapterConfig& adapter,
                                        const QuantizationConfig& base = {});

}  // namespace ftrun
