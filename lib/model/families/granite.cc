// The dense Granite 3.x models of IBM: Llama's blocks with four multipliers.
#include "model/families.h"
#include "model/families/layer_types.h"

namespace ftrun {
namespace {

void read_granite(ConfigReader& reader, ModelConfig& config) {
  const bool attention_bias = reader.read_bool_or("attention_bias", false);
  config.qkv_bias = attention_bias;
  config.attention_out_bias = attention_bias;
  config.mlp_bias = reader.read_bool_or("mlp_bias", false);
  config.embedding_scale = reader.read_number_or("embedding_multiplier", 1.0, true);
  config.residual_scale = reader.read_number_or("residual_multiplier", 1.0, true);
  config.attention_scale = reader.read_number_or("attention_multiplier", 1.0, true);
  config.logit_scale = 1.0 / reader.read_number_or("logits_scaling", 1.0, true);
  read_layer_types(reader, config, 0);
}

}  // namespace

const Family kGraniteFamily{
    .model_type = "granite", .architecture = "GraniteForCausalLM", .read = read_granite};

}  // namespace ftrun
