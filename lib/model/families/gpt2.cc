// GPT-2 and the models that use its config class (DialoGPT, CodeParrot, ...): layer norms, an
// ungated MLP, learned position vectors. Files store matrices as [inputs, outputs].
#include "model/families.h"

namespace ftrun {
namespace {

void read_gpt2(ConfigReader& reader, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
  config.feed_forward = reader.read_integer_or("n_inner", 4 * config.hidden, {1, int64_t{1} << 22});
  if (!reader.read_bool_or("scale_attn_weights", true)) config.attention_scale = 1.0;
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    if (reader.read_bool_or(key, false)) reader.add_unsupported(key, "is not supported yet");
  record_dropouts(reader, config, {"embd_pdrop", "resid_pdrop"}, 0.1);
}

}  // namespace

const Family kGpt2Family{.model_type = "gpt2",
                         .architecture = "GPT2LMHeadModel",
                         .keys = {.hidden = "n_embd",
                                  .feed_forward = nullptr,
                                  .layers = "n_layer",
                                  .query_heads = "n_head",
                                  .kv_heads = nullptr,
                                  .head_size = nullptr,
                                  .positions = "n_positions",
                                  .norm_epsilon = "layer_norm_epsilon",
                                  .activation = "activation_function",
                                  .attention_dropout = "attn_pdrop"},
                         .defaults = {.vocab_rows = 50257,
                                      .hidden = 768,
                                      .layers = 12,
                                      .query_heads = 12,
                                      .positions = 1024,
                                      .norm_epsilon = 1e-5,
                                      .attention_dropout = 0.1,
                                      .activation = "gelu_new",
                                      .tied = true},
                         .names = {.root = "transformer.",
                                   .embedding = "transformer.wte",
                                   .positions = "transformer.wpe",
                                   .blocks = "transformer.h.",
                                   .input_norm = "ln_1",
                                   .mlp_norm = "ln_2",
                                   .linear_layers = {"attn.c_attn", "attn.c_attn", "attn.c_attn",
                                                     "attn.c_proj", "", "mlp.c_fc", "mlp.c_proj"},
                                   .norm = "transformer.ln_f",
                                   .transposed = true,
                                   .ignored_suffixes = {".attn.bias", ".attn.masked_bias"},
                                   .default_targets = {"c_attn"}},
                         .read = read_gpt2};

}  // namespace ftrun
