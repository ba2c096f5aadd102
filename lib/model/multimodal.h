#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "model/config_reader.h"

namespace ftrun {

/// The key of the decoder's config in the config.json of a multimodal class.
inline constexpr const char* kTextConfig = "text_config";

/// MultimodalClass is a class of transformers that has a decoder beside other parts (a vision
/// tower and what joins both). Its config.json has the decoder's as kTextConfig. The decoder
/// trains; all other parts stay as they are.
struct MultimodalClass {
  /// config.json's model_type.
  std::string_view model_type;
  /// The class in config.json's `architectures`.
  std::string_view architecture;
  /// The model_type of a text_config that has none.
  std::string_view text_type;
};

/// Returns the multimodal class of a model_type, or null.
const MultimodalClass* find_multimodal(std::string_view model_type);
/// Returns the names of all multimodal classes for messages: "gemma3, mistral3".
std::string multimodal_names();

/// Returns the decoder's config of a multimodal config.json: text_config, with the keys about
/// weights and tokens that stand only outside it. Notes in `findings` a text_config that is not an
/// object, and architectures other than the class's.
nlohmann::json text_part(const nlohmann::json& root, const MultimodalClass& outer,
                         ConfigFindings& findings);

/// Returns the name that multimodal files have for a tensor of the decoder
/// ("language_model.model.norm.weight"). All versions of transformers read it.
std::string name_in_multimodal_files(std::string_view name);
/// Returns the name that a multimodal model in memory, and so PEFT, has for a module or tensor of
/// the decoder ("model.language_model.norm.weight"). `root` is the prefix of the family's names
/// that the head's name does not have ("model.").
std::string name_in_multimodal_model(std::string_view name, std::string_view root);
/// The expression that keeps PEFT's adapters out of the other parts of a multimodal model, whose
/// modules have names of the decoder's; files of adapters have it as exclude_modules.
inline constexpr std::string_view kOtherPartsPattern = ".*(vision_tower|multi_modal_projector).*";

/// Says whether a stored tensor belongs to another part than the decoder.
bool is_of_other_part(std::string_view stored);
/// Says whether files have the names that the model has in memory, as some of transformers 5 have,
/// by the name of a tensor of another part ("model.vision_tower.patch_conv.weight").
bool has_names_in_memory(std::string_view of_other_part);

}  // namespace ftrun
