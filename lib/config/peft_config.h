#pragma once

#include <string>

#include "config/config.h"

namespace ftrun {

/// The model that an adapter was trained on, as PEFT's files name it: a folder, or a name of the Hub and the revision
/// that was asked for ("" for none).
struct BaseModelName {
  std::string name;
  std::string revision;
};
/// Tells a folder that is there from a name of the Hub with a revision.
BaseModelName base_model_name(const std::string& path);

/// The adapter_config.json of PEFT for an adapter that was trained on `base`: what desugar_adapter() reads. `tied`: a
/// tied matrix that trains whole is saved under both of its names.
std::string peft_config(const AdapterConfig& adapter, const BaseModelName& base, bool tied);

/// The section as JSON; "none" when nothing is quantized.
std::string quantization_text(const QuantizationConfig& quantization);
/// What such a text says, which may be anybody's; nothing of "" and "none". Error(kBadInput) naming `where` for anything else.
QuantizationConfig quantization_of_text(const std::string& text, const std::string& where);

}  // namespace ftrun
