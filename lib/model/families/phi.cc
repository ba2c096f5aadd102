// Phi-1, Phi-1.5 and Phi-2 of Microsoft: attention and MLP beside each other on one layer norm, a plain
// MLP, biases of all products and of the head; a part of each head rotates.
#include "model/families.h"

namespace ftrun {
namespace {

void read_phi(ConfigReader& reader, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
  config.parallel_residual = true;
  if (reader.flag_or("qk_layernorm", false))
    reader.unsupported("qk_layernorm", "layer norms of query and key heads are not supported yet");
  for (const char* key : {"embd_pdrop", "resid_pdrop"})
    if (reader.number_or(key, 0.0, false) != 0) config.dropouts.emplace_back(key);
}

}  // namespace

const Family kPhiFamily{
    .model_type = "phi",
    .architecture = "PhiForCausalLM",
    .keys = {.norm_epsilon = "layer_norm_eps"},
    .defaults = {.positions = 2048,
                 .norm_epsilon = 1e-5,
                 .partial_rotary = 0.5,
                 .activation = "gelu_new"},
    .names = {.post_norm = {},
              .products = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                           "self_attn.dense", "", "mlp.fc1", "mlp.fc2"},
              .norm = "model.final_layernorm",
              .head_bias = true,
              .adapted = {"q_proj", "v_proj", "fc1", "fc2"}},
    .rotates_partly = true,
    .read = read_phi};

}  // namespace ftrun
