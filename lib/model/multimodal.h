#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "model/config_reader.h"

namespace ftrun {

/// The key of the decoder's config in the config.json of a multimodal class.
inline constexpr const char* kTextConfig = "text_config";

/// MultimodalClass is a class of transformers that has a decoder and other parts (a vision tower
/// and a projector). Its config.json contains the decoder's config as kTextConfig. The decoder
/// trains; the other parts stay unchanged.
struct MultimodalClass {
  /// The model_type of config.json.
  std::string_view model_type;
  /// The class in config.json's `architectures`.
  std::string_view architecture;
  /// The model_type of a text_config that has none.
  std::string_view text_type;
};

/// Returns the multimodal class of a model_type, or null.
const MultimodalClass* find_multimodal_class(std::string_view model_type);
/// Returns the names of all multimodal classes for messages: "gemma3, mistral3".
std::string multimodal_names();

/// Returns the decoder's config of a multimodal config.json: text_config, with the keys about
/// weights and tokens that are only outside it. Records in `findings` a text_config that is not an
/// object, and architectures other than the class's.
nlohmann::json decoder_config(const nlohmann::json& root, const MultimodalClass& outer,
                              ConfigFindings& findings);

/// Returns the name of a decoder tensor in multimodal files ("language_model.model.norm.weight").
/// All versions of transformers read it.
std::string name_in_multimodal_files(std::string_view name);
/// Returns the name of a decoder module or tensor in a multimodal model in memory, which PEFT uses
/// ("model.language_model.norm.weight"). `root` is the prefix of the family's names that the head's
/// name lacks ("model.").
std::string name_in_multimodal_model(std::string_view name, std::string_view root);
/// The expression that excludes the other parts of a multimodal model from PEFT's adapters, because
/// their modules have the same names as the decoder's; files of adapters hold it as
/// exclude_modules.
inline constexpr std::string_view kNonDecoderPattern = ".*(vision_tower|multi_modal_projector).*";

/// Returns whether a stored tensor belongs to another part than the decoder.
bool is_outside_decoder(std::string_view stored);
/// Returns whether files use the model's names in memory, as some files of transformers 5 do. It is
/// decided by the name of a tensor of another part ("model.vision_tower.patch_conv.weight").
bool uses_in_memory_names(std::string_view tensor);

}  // namespace ftrun
