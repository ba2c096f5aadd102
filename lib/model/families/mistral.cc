// Mistral: one sliding window for all layers, or none (v0.2 and later). No biases. Ministral has
// windows by layer. Ministral 3 rotates by yarn, and scales the queries of positions beyond the
// original context; rows that long are refused.
#include <algorithm>

#include "model/families.h"
#include "model/families/layer_types.h"

namespace ftrun {
namespace {

void read_mistral(ConfigReader& reader, ModelConfig& config) {
  const int64_t window = read_window(reader);
  read_layer_types(reader, config, window);
  // transformers gives every layer of this class the window, regardless of layer_types.
  const auto slides = [](int64_t w) { return w != 0; };
  const bool mixed = std::any_of(config.windows.begin(), config.windows.end(), slides) &&
                     !std::all_of(config.windows.begin(), config.windows.end(), slides);
  if (mixed)
    reader.add_unsupported("layer_types",
                           "a mistral model with two kinds of layers is not supported yet");
  std::fill(config.windows.begin(), config.windows.end(), window);
}

void read_ministral(ConfigReader& reader, ModelConfig& config) {
  const int64_t window = read_window(reader);
  if (!read_layer_types(reader, config, window))
    std::fill(config.windows.begin(), config.windows.end(), window);
}

void read_ministral3(ConfigReader& reader, ModelConfig& config) {
  // The class has no window where config.json says none, and one for all layers where it does.
  if (reader.find("sliding_window"))
    std::fill(config.windows.begin(), config.windows.end(), read_window(reader));
  if (!reader.find("rope_parameters") && !reader.find("rope_scaling"))
    config.rope = {.theta = 1e6, .scaling = YarnScaling{.factor = 16, .original_positions = 16384}};
  else if (!config.rope.as<YarnScaling>())
    reader.add_unsupported("rope_parameters", "rope types other than yarn are not supported yet");
  config.max_unscaled_positions = config.rope.original_positions();
}

}  // namespace

const Family kMistralFamily{.model_type = "mistral",
                            .architecture = "MistralForCausalLM",
                            .defaults = {.kv_heads = 8},
                            .read = read_mistral};
const Family kMinistralFamily{.model_type = "ministral",
                              .architecture = "MinistralForCausalLM",
                              .defaults = {.kv_heads = 8},
                              .read = read_ministral};
const Family kMinistral3Family{.model_type = "ministral3",
                               .architecture = "Ministral3ForCausalLM",
                               .defaults = {.vocab_rows = 131072,
                                            .hidden = 4096,
                                            .layers = 34,
                                            .query_heads = 32,
                                            .kv_heads = 8,
                                            .head_size = 128,
                                            .positions = 262144,
                                            .norm_epsilon = 1e-5,
                                            .pad_id = 11},
                               .scales_far_queries = true,
                               .read = read_ministral3};

}  // namespace ftrun
