// OLMo 2 of Ai2: norms after attention and MLP but not before them, and one norm over all query
// heads and one over all key heads of a token.
#include "model/families.h"

namespace ftrun {
namespace {

void read_olmo2(ConfigReader& reader, ModelConfig& config) {
  config.qkv_bias = config.attention_out_bias = reader.read_bool_or("attention_bias", false);
  config.qk_norm = QkNorm::kAllHeads;
}

}  // namespace

const Family kOlmo2Family{.model_type = "olmo2",
                          .architecture = "Olmo2ForCausalLM",
                          .defaults = {.positions = 2048, .norm_epsilon = 1e-5, .pad_id = 1},
                          .names = {.input_norm = {},
                                    .mlp_norm = {},
                                    .attention_output_norm = "post_attention_layernorm",
                                    .mlp_output_norm = "post_feedforward_layernorm"},
                          .read = read_olmo2};

}  // namespace ftrun
