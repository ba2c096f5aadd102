#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// BaseModelName is the model that an adapter was trained on, as PEFT's files name it: a folder, or
/// a Hub name and the requested revision ("" for none).
struct BaseModelName {
  std::string name;
  std::string revision;
};
/// Reads `path` as a Hub name with a revision, unless a folder of this name exists.
BaseModelName base_model_name(const std::string& path);

/// PeftBaseModel holds the facts about the base model that PEFT's file records in addition to the
/// adapter.
struct PeftBaseModel {
  BaseModelName name;
  /// The modules that "all-linear" means.
  std::vector<std::string> linear_modules;
  /// The modules that have an adapter if the config names none.
  std::vector<std::string> default_targets;
  /// Says whether the embedding and the head are one matrix: if it is trained as a whole, it is
  /// saved under both names.
  bool tied = false;
  std::string embedding;
  std::string head;
  /// Says whether modules store matrices as [inputs, outputs] (transformers' Conv1D).
  bool transposed = false;
  /// The expression that matches modules of the parts that do not train, which get no adapter; ""
  /// for none.
  std::string non_decoder_pattern;
};

/// Makes the expression of exclude_modules that matches what the adapter excludes and the parts
/// that do not train. The model must have such parts (PeftBaseModel::non_decoder_pattern).
std::string exclusion_with_non_decoder(const AdapterConfig& adapter, const PeftBaseModel& model);

/// Returns the text of PEFT's adapter_config.json, which desugar_adapter() reads.
std::string peft_config_text(const AdapterConfig& adapter, const PeftBaseModel& model);

/// Formats the section as JSON; "none" if nothing is quantized.
std::string quantization_text(const QuantizationConfig& quantization);
/// Reads the quantization from a text of unknown origin; "" and "none" mean that nothing is
/// quantized. Throws Error(kBadInput) naming `where` for any other text that is invalid.
QuantizationConfig parse_quantization(const std::string& text, const std::string& where);

}  // namespace ftrun
