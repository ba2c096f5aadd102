// OPT of Meta AI: layer norms, an ungated MLP, learned position vectors. The position table begins
// with two vectors for padding.
#include "model/families.h"

namespace ftrun {
namespace {

void read_opt(ConfigReader& reader, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.norm_weight = config.norm_bias =
      reader.read_bool_or("layer_norm_elementwise_affine", true);
  config.position_offset = 2;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias =
      reader.read_bool_or("enable_bias", true);
  if (!reader.read_bool_or("do_layer_norm_before", true))
    reader.add_unsupported("do_layer_norm_before", "norms after the sums are not supported yet");
  if (reader.read_bool_or("_remove_final_layer_norm", false))
    reader.add_unsupported("_remove_final_layer_norm", "is not supported yet");
  if (reader.read_integer_or("word_embed_proj_dim", config.hidden, {}) != config.hidden)
    reader.add_unsupported("word_embed_proj_dim",
                           "embeddings of another width than hidden_size are not supported yet");
  record_dropouts(reader, config, {"dropout"}, 0.1);
}

}  // namespace

const Family kOptFamily{
    .model_type = "opt",
    .architecture = "OPTForCausalLM",
    .keys = {.feed_forward = "ffn_dim",
             .kv_heads = nullptr,
             .head_size = nullptr,
             .norm_epsilon = nullptr,
             .activation = "activation_function"},
    .defaults =
        {.positions = 2048, .norm_epsilon = 1e-5, .pad_id = 1, .activation = "relu", .tied = true},
    .names = {.embedding = "model.decoder.embed_tokens",
              .positions = "model.decoder.embed_positions",
              .blocks = "model.decoder.layers.",
              .input_norm = "self_attn_layer_norm",
              .mlp_norm = "final_layer_norm",
              .linear_layers = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                "self_attn.out_proj", "", "fc1", "fc2"},
              .norm = "model.decoder.final_layer_norm"},
    .read = read_opt};

}  // namespace ftrun
