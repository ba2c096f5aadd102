// Mistral: one sliding window for all layers, or none (v0.2 and later). No biases.
#include <algorithm>

#include "model/families.h"
#include "model/families/layer_types.h"

namespace ftrun {
namespace {

void read_mistral(ConfigReader& reader, ModelConfig& config) {
  const int64_t window = read_window(reader);
  read_layer_types(reader, config, window);
  // transformers gives every layer of this class the window, whatever layer_types says.
  const auto slides = [](int64_t w) { return w != 0; };
  const bool mixed = std::any_of(config.windows.begin(), config.windows.end(), slides) &&
                     !std::all_of(config.windows.begin(), config.windows.end(), slides);
  if (mixed)
    reader.unsupported("layer_types",
                       "a mistral model with two kinds of layers is not supported yet");
  std::fill(config.windows.begin(), config.windows.end(), window);
}

}  // namespace

const Family kMistralFamily{.model_type = "mistral",
                            .architecture = "MistralForCausalLM",
                            .defaults = {.kv_heads = 8},
                            .read = read_mistral};

}  // namespace ftrun
