#include "checkpoint/exported_config.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/json_strict.h"

namespace ftrun {
namespace {

/// Returns RoPE settings that transformers 4 writes as `theta` and, if there is one, `scaling`, in
/// the form of transformers 5: one object.
nlohmann::ordered_json as_rope_parameters(const nlohmann::ordered_json& theta,
                                          const nlohmann::ordered_json& scaling) {
  nlohmann::ordered_json rope{{"rope_type", "default"}};
  if (scaling.is_object()) rope = scaling;
  rope["rope_theta"] = theta;
  if (rope.contains("type") && !rope.contains("rope_type")) rope["rope_type"] = rope["type"];
  return rope;
}

/// Returns the rope_scaling of transformers 4 that is equivalent to `rope` without its theta.
nlohmann::ordered_json as_rope_scaling(nlohmann::ordered_json rope) {
  rope.erase("rope_theta");
  const bool plain = !rope.contains("rope_type") || rope["rope_type"] == "default";
  return plain ? nlohmann::ordered_json(nullptr) : rope;
}

/// Writes RoPE settings in both forms for a model family whose sliding-window layers have their own
/// RoPE (Gemma 3).
void spell_layer_ropes_both_ways(nlohmann::ordered_json& config) {
  constexpr const char* kFull = "full_attention";
  constexpr const char* kWindow = "sliding_attention";
  if (config.contains("rope_parameters") && config["rope_parameters"].is_object()) {
    const nlohmann::ordered_json ropes = config["rope_parameters"];
    const auto has_theta = [&](const char* type) {
      return ropes.contains(type) && ropes[type].is_object() && ropes[type].contains("rope_theta");
    };
    if (has_theta(kFull) && !config.contains("rope_theta")) {
      config["rope_theta"] = ropes[kFull]["rope_theta"];
      if (!config.contains("rope_scaling")) config["rope_scaling"] = as_rope_scaling(ropes[kFull]);
    }
    if (has_theta(kWindow) && !config.contains("rope_local_base_freq"))
      config["rope_local_base_freq"] = ropes[kWindow]["rope_theta"];
  } else if (config.contains("rope_theta")) {
    const auto scaling = config.value("rope_scaling", nlohmann::ordered_json(nullptr));
    config["rope_parameters"] = {
        {kFull, as_rope_parameters(config["rope_theta"], scaling)},
        {kWindow, as_rope_parameters(config["rope_local_base_freq"], nullptr)}};
  }
}

/// Writes RoPE settings in the form of transformers 5, one object, and in that of transformers 4,
/// two keys.
void spell_rope_both_ways(nlohmann::ordered_json& config) {
  const bool has_new = config.contains("rope_parameters") && config["rope_parameters"].is_object();
  if (config.contains("rope_local_base_freq") ||
      (has_new && config["rope_parameters"].contains("full_attention")))
    return spell_layer_ropes_both_ways(config);
  if (has_new && config["rope_parameters"].contains("rope_theta") &&
      !config.contains("rope_theta")) {
    const nlohmann::ordered_json rope = config["rope_parameters"];
    config["rope_theta"] = rope["rope_theta"];
    if (!config.contains("rope_scaling")) config["rope_scaling"] = as_rope_scaling(rope);
  } else if (!has_new && config.contains("rope_theta")) {
    const auto scaling = config.value("rope_scaling", nlohmann::ordered_json(nullptr));
    config["rope_parameters"] = as_rope_parameters(config["rope_theta"], scaling);
  }
}

}  // namespace

std::string exported_config(const std::string& config_json, DType dtype,
                            const std::string& decoder_key, const std::string& where) {
  if (!parse_json_strict(config_json, where).is_object())
    throw Error(ExitCode::kBadInput, cat(where, ": must be a JSON object"),
                "use the config.json of the model that was trained");
  auto config = nlohmann::ordered_json::parse(config_json);
  const char* name = dtype == DType::kF32   ? "float32"
                     : dtype == DType::kF16 ? "float16"
                                            : "bfloat16";
  config["dtype"] = name;
  config["torch_dtype"] = name;
  config.erase("quantization_config");  // the written weights are not quantized
  // Settings for other parts of a multimodal model stay.
  auto& decoder = decoder_key.empty() ? config : config[decoder_key];
  for (const char* key : {"dtype", "torch_dtype"})
    if (decoder.contains(key)) decoder[key] = name;
  spell_rope_both_ways(decoder);
  return config.dump(2) + "\n";
}

}  // namespace ftrun
