#pragma once

#include <string>

#include "config/config.h"

namespace ftrun {

/// The adapter_config.json of PEFT for an adapter that was trained on `base_model` (its folder): what desugar_adapter()
/// reads. `tied`: a tied matrix that trains whole is saved under both of its names.
std::string peft_config(const AdapterConfig& adapter, const std::string& base_model, bool tied);

/// The section as JSON; "none" when nothing is quantized.
std::string quantization_text(const QuantizationConfig& quantization);
/// What such a text says, which may be anybody's; nothing of "" and "none". Error(kBadInput) naming `where` for anything else.
QuantizationConfig quantization_of_text(const std::string& text, const std::string& where);

}  // namespace ftrun
