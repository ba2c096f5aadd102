// StableLM of Stability AI: Llama's blocks with layer norms; a part of each head rotates; attention
// and MLP are in sequence, or parallel on one norm.
#include "model/families.h"

namespace ftrun {
namespace {

void read_stablelm(ConfigReader& reader, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.qkv_bias = reader.read_bool_or("use_qkv_bias", false);
  config.parallel_residual = reader.read_bool_or("use_parallel_residual", false);
  config.mlp_norm = !config.parallel_residual;
  if (reader.read_bool_or("qk_layernorm", false)) config.qk_norm = QkNorm::kLayerNormByHead;
  record_dropouts(reader, config, {"hidden_dropout"});
}

}  // namespace

const Family kStableLmFamily{
    .model_type = "stablelm",
    .architecture = "StableLmForCausalLM",
    .keys = {.head_size = nullptr, .norm_epsilon = "layer_norm_eps"},
    .defaults = {.kv_heads = 32, .positions = 4096, .norm_epsilon = 1e-5, .partial_rotary = 0.25},
    .names = {.q_norm = "self_attn.q_layernorm.norms.*", .k_norm = "self_attn.k_layernorm.norms.*"},
    .rotates_partly = true,
    .read = read_stablelm};

}  // namespace ftrun
