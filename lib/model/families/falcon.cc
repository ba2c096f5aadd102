// Falcon of TII with RoPE: layer norms, an ungated MLP, attention and MLP in parallel (on one norm,
// or one each) or in sequence; files store q, k and v as one matrix, whose rows are ordered by key
// head.
#include "model/families.h"

namespace ftrun {
namespace {

constexpr const char* kNotYet = "is not supported yet";

void read_falcon(ConfigReader& reader, ModelConfig& config) {
  const bool is_new = reader.read_bool_or("new_decoder_architecture", false);
  config.norm = NormKind::kLayer;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias =
      reader.read_bool_or("bias", false);
  config.feed_forward = 4 * config.hidden;
  if (reader.find("ffn_hidden_size"))
    config.feed_forward = reader.read_integer("ffn_hidden_size", {1, int64_t{1} << 22});
  if (!is_new && reader.read_bool_or("multi_query", true)) config.kv_heads = 1;
  config.parallel_residual = is_new || reader.read_bool_or("parallel_attn", true);
  if (reader.read_bool_or("alibi", false))
    reader.add_unsupported(
        "alibi",
        "attention biases by distance are not supported; Falcon models with rotary embeddings are");
  const bool has_two_norms =
      reader.read_integer_or("num_ln_in_parallel_attn", is_new ? 2 : 1, {1, 2}) == 2;
  config.mlp_norm = !config.parallel_residual || has_two_norms;
  if (has_two_norms && !is_new)
    reader.add_unsupported("num_ln_in_parallel_attn",
                           "2 norms in blocks of the old architecture are not supported yet");
  if (is_new && !reader.read_bool_or("parallel_attn", true))
    reader.add_unsupported("parallel_attn", kNotYet);
  record_dropouts(reader, config, {"hidden_dropout"});
}

}  // namespace

const Family kFalconFamily{
    .model_type = "falcon",
    .architecture = "FalconForCausalLM",
    .keys = {.feed_forward = nullptr,
             .kv_heads = "num_kv_heads",
             .head_size = nullptr,
             .norm_epsilon = "layer_norm_epsilon",
             .activation = "activation"},
    .defaults = {.positions = 2048, .norm_epsilon = 1e-5, .activation = "gelu", .tied = true},
    .names = {.root = "transformer.",
              .embedding = "transformer.word_embeddings",
              .blocks = "transformer.h.",
              .parallel_input_norm = "ln_attn",
              .parallel_mlp_norm = "ln_mlp",
              .linear_layers = {"self_attention.query_key_value", "self_attention.query_key_value",
                                "self_attention.query_key_value", "self_attention.dense", "",
                                "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"},
              .norm = "transformer.ln_f",
              .rows_by_key_head = true,
              .default_targets = {"query_key_value"}},
    .read = read_falcon};

}  // namespace ftrun
