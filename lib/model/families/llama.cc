// Llama 2 and 3, and the models that use their config class (SmolLM2, TinyLlama, Yi, ...).
#include "model/families.h"
#include "model/families/layer_types.h"

namespace ftrun {
namespace {

void read_llama(ConfigReader& reader, ModelConfig& config) {
  const bool attention_bias = reader.read_bool_or("attention_bias", false);
  config.qkv_bias = attention_bias;
  config.attention_out_bias = attention_bias;
  config.mlp_bias = reader.read_bool_or("mlp_bias", false);
  read_layer_types(reader, config, 0);
}

}  // namespace

const Family kLlamaFamily{
    .model_type = "llama", .architecture = "LlamaForCausalLM", .read = read_llama};

}  // namespace ftrun
