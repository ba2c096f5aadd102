// SmolLM3 of Hugging Face: Llama's blocks, of which every fourth does not rotate.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/families.h"
#include "model/families/layer_types.h"

namespace ftrun {
namespace {

/// Reads which layers rotate: those whose entry in no_rope_layers is not 0, as transformers' class
/// reads it.
void read_rotating_layers(ConfigReader& reader, ModelConfig& config) {
  const int64_t interval = reader.read_integer_or("no_rope_layer_interval", 4, {1, 10000});
  const auto layers = static_cast<size_t>(config.layers);
  config.rotates.assign(layers, true);
  for (size_t i = 0; i < layers; ++i)
    config.rotates[i] = (static_cast<int64_t>(i) + 1) % interval != 0;
  const nlohmann::json* const given = reader.find("no_rope_layers");
  if (!given) return;
  const auto is_flag = [](const nlohmann::json& entry) {
    return entry.is_number_integer() || entry.is_boolean();
  };
  if (!given->is_array() || given->size() < layers ||
      !std::all_of(given->begin(), given->end(), is_flag)) {
    reader.add_problem("no_rope_layers",
                       cat("found ", json_value_text(*given), "; expected a 1 or 0 for ",
                           "each of ", config.layers, " layers"));
    return;
  }
  for (size_t i = 0; i < layers; ++i)
    config.rotates[i] = given->at(i) != 0 && given->at(i) != false;
}

void read_smollm3(ConfigReader& reader, ModelConfig& config) {
  config.qkv_bias = config.attention_out_bias = reader.read_bool_or("attention_bias", false);
  config.mlp_bias = reader.read_bool_or("mlp_bias", false);
  read_rotating_layers(reader, config);
  const bool slides =
      reader.read_bool_or("use_sliding_window", false) && reader.find("sliding_window") != nullptr;
  const int64_t window = slides ? read_window(reader) : 0;
  if (read_layer_types(reader, config, window)) return;
  for (size_t i = 0; i < config.windows.size(); ++i)
    if (!config.rotates[i]) config.windows[i] = window;
}

}  // namespace

const Family kSmolLm3Family{.model_type = "smollm3",
                            .architecture = "SmolLM3ForCausalLM",
                            .defaults = {.kv_heads = 4,
                                         .positions = 32768,
                                         .rope_theta = 2e6,
                                         .pad_id = 128004,
                                         .tied = true},
                            .read = read_smollm3};

}  // namespace ftrun
