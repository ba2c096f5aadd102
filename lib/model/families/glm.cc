// The dense GLM-4 models of Zhipu AI. Files store gate and up as one matrix; query, key and value
// have biases; in one half of each head, neighboring elements rotate together. The releases of
// 2025 (glm4) also have norms after attention and MLP.
#include <array>
#include <string_view>

#include "model/families.h"

namespace ftrun {
namespace {

constexpr ConfigDefaults kGlmDefaults{.kv_heads = 2,
                                      .head_size = 128,
                                      .positions = 131072,
                                      .norm_epsilon = 1.5625e-7,
                                      .partial_rotary = 0.5,
                                      .pad_id = 151329};

constexpr std::array<std::string_view, kProjections> kGlmLinearLayers{
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_up_proj", "mlp.gate_up_proj", "mlp.down_proj"};

void read_glm(ConfigReader& reader, ModelConfig& config) {
  config.qkv_bias = reader.read_bool_or("attention_bias", true);
  config.rotates_pairs = true;
}

}  // namespace

const Family kGlmFamily{.model_type = "glm",
                        .architecture = "GlmForCausalLM",
                        .defaults = kGlmDefaults,
                        .names = {.linear_layers = kGlmLinearLayers},
                        .rotates_partly = true,
                        .read = read_glm};
const Family kGlm4Family{.model_type = "glm4",
                         .architecture = "Glm4ForCausalLM",
                         .defaults = kGlmDefaults,
                         .names = {.attention_output_norm = "post_self_attn_layernorm",
                                   .mlp_output_norm = "post_mlp_layernorm",
                                   .linear_layers = kGlmLinearLayers},
                         .rotates_partly = true,
                         .read = read_glm};

}  // namespace ftrun
