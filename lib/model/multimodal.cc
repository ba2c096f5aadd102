#include "model/multimodal.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.h"

namespace ftrun {
namespace {

using nlohmann::json;

constexpr std::array<MultimodalClass, 2> kClasses{{
    {"gemma3", "Gemma3ForConditionalGeneration", "gemma3_text"},
    {"mistral3", "Mistral3ForConditionalGeneration", "mistral"},
}};

/// kNonDecoderPrefixes lists how the names of the other parts' tensors begin, as transformers 4 and
/// 5 write them.
constexpr std::array<std::string_view, 4> kNonDecoderPrefixes{
    "vision_tower.", "multi_modal_projector.", "model.vision_tower.",
    "model.multi_modal_projector."};

/// The keys outside text_config in a multimodal config.json that also apply to the decoder.
constexpr std::array<const char*, 7> kOuterKeys{
    "dtype",        "torch_dtype",         "bos_token_id",       "eos_token_id",
    "pad_token_id", "tie_word_embeddings", "quantization_config"};

}  // namespace

const MultimodalClass* find_multimodal_class(std::string_view model_type) {
  const auto found = std::find_if(kClasses.begin(), kClasses.end(), [&](const MultimodalClass& c) {
    return c.model_type == model_type;
  });
  return found == kClasses.end() ? nullptr : &*found;
}

std::string multimodal_names() {
  std::vector<std::string> names;
  for (const MultimodalClass& c : kClasses) names.emplace_back(c.model_type);
  return join(names, ", ");
}

json decoder_config(const json& root, const MultimodalClass& outer, ConfigFindings& findings) {
  ConfigReader reader(root, findings);
  const auto classes = reader.read_texts("architectures");
  if (!classes.empty() &&
      std::find(classes.begin(), classes.end(), outer.architecture) == classes.end())
    reader.add_unsupported("architectures", cat(classes.front(), " is not supported yet (",
                                                outer.architecture, " is)"));
  const json* const found = reader.find(kTextConfig);
  if (found == nullptr || !found->is_object()) {
    reader.add_problem(kTextConfig, cat(found ? "found " + json_value_text(*found) : "missing",
                                        "; expected the object of the model's decoder"));
    return json::object();
  }
  json text = *found;
  text.erase("architectures");
  if (!text.contains("model_type")) text["model_type"] = outer.text_type;
  // The outer tie_word_embeddings always counts; other outer keys count only if text_config lacks
  // them.
  for (const char* key : kOuterKeys) {
    const bool counts = std::string_view(key) == "tie_word_embeddings" || !text.contains(key) ||
                        text.at(key).is_null();
    if (const json* value = reader.find(key); value && counts) text[key] = *value;
  }
  return text;
}

std::string name_in_multimodal_files(std::string_view name) {
  return cat("language_model.", name);
}

std::string name_in_multimodal_model(std::string_view name, std::string_view root) {
  return name.starts_with(root) ? cat(root, "language_model.", name.substr(root.size()))
                                : std::string(name);
}

bool is_outside_decoder(std::string_view stored) {
  return std::any_of(kNonDecoderPrefixes.begin(), kNonDecoderPrefixes.end(),
                     [&](std::string_view begin) { return stored.starts_with(begin); });
}

bool uses_in_memory_names(std::string_view tensor) {
  return tensor.starts_with("model.");
}

}  // namespace ftrun
