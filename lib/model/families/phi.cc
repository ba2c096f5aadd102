// Phi-1, 1.5 and 2 of Microsoft: attention and an ungated MLP are parallel and read one layer norm;
// all linear layers and the head have biases; a part of each head rotates.
#include "model/families.h"

namespace ftrun {
namespace {

void read_phi(ConfigReader& reader, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = config.head_bias = true;
  config.parallel_residual = true;
  if (reader.read_bool_or("qk_layernorm", false))
    reader.add_unsupported(
        "qk_layernorm",
        "layer norms of heads that share a weight and a bias are not supported yet");
  record_dropouts(reader, config, {"embd_pdrop", "resid_pdrop"});
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
    .names = {.mlp_norm = {},
              .linear_layers = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                "self_attn.dense", "", "mlp.fc1", "mlp.fc2"},
              .norm = "model.final_layernorm",
              .default_targets = {"q_proj", "v_proj", "fc1", "fc2"}},
    .rotates_partly = true,
    .read = read_phi};

}  // namespace ftrun
