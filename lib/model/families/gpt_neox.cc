// GPT-NeoX and Pythia of EleutherAI: layer norms, an ungated MLP, attention and MLP in parallel.
// Files store q, k and v as one matrix, whose rows are ordered by head. A part of each head
// rotates.
#include "model/families.h"

namespace ftrun {
namespace {

void read_gpt_neox(ConfigReader& reader, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.mlp_bias = true;
  config.qkv_bias = config.attention_out_bias = reader.read_bool_or("attention_bias", true);
  config.parallel_residual = reader.read_bool_or("use_parallel_residual", true);
  record_dropouts(reader, config, {"hidden_dropout"});
}

}  // namespace

const Family kGptNeoxFamily{
    .model_type = "gpt_neox",
    .architecture = "GPTNeoXForCausalLM",
    .keys = {.kv_heads = nullptr,
             .head_size = nullptr,
             .norm_epsilon = "layer_norm_eps",
             .rope_theta = "rotary_emb_base",
             .partial_rotary = "rotary_pct"},
    .defaults = {.positions = 2048,
                 .norm_epsilon = 1e-5,
                 .partial_rotary = 0.25,
                 .activation = "gelu"},
    .names = {.root = "gpt_neox.",
              .embedding = "gpt_neox.embed_in",
              .blocks = "gpt_neox.layers.",
              .linear_layers = {"attention.query_key_value", "attention.query_key_value",
                                "attention.query_key_value", "attention.dense", "",
                                "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"},
              .norm = "gpt_neox.final_layer_norm",
              .head = "embed_out",
              .rows_by_key_head = true,
              .ignored_suffixes = {"rotary_emb.inv_freq", ".attention.bias",
                                   ".attention.masked_bias"},
              .default_targets = {"query_key_value"}},
    .rotates_partly = true,
    .read = read_gpt_neox};

}  // namespace ftrun
