// The text models Gemma 1, 2 and 3 of Google. They have RMS norms whose files store the weight
// minus 1, embeddings multiplied by the square root of their width, and a GELU gate. Gemma 2 and 3
// also have norms after attention and MLP, and sliding windows on some layers. Gemma 2 has softcaps
// of scores and logits. Gemma 3 has another rotary embedding on layers with a sliding window, and
// norms of query and key heads.
#include <cmath>

#include "model/families.h"
#include "model/families/layer_types.h"

namespace ftrun {
namespace {

constexpr ConfigDefaults defaults(int64_t kv_heads, int64_t positions) {
  return {.kv_heads = kv_heads,
          .head_size = 256,
          .positions = positions,
          .pad_id = 0,
          .activation = "gelu_pytorch_tanh",
          .tied = true};
}

/// The config.json files of Gemma 3's published multimodal models leave out these values, which are
/// defaults of their class.
constexpr ConfigDefaults kGemma3Defaults = [] {
  ConfigDefaults found = defaults(4, 131072);
  found.vocab_rows = 262208;
  found.hidden = 2304;
  found.layers = 26;
  found.query_heads = 8;
  return found;
}();

constexpr TensorNames kNormedOutputs{.mlp_norm = "pre_feedforward_layernorm",
                                     .attention_output_norm = "post_attention_layernorm",
                                     .mlp_output_norm = "post_feedforward_layernorm"};

void read_common_part(ConfigReader& reader, ModelConfig& config) {
  config.norm = NormKind::kRmsStoredLessOne;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
  config.rounds_embedding_scale = true;
  config.qkv_bias = config.attention_out_bias = reader.read_bool_or("attention_bias", false);
  if (reader.read_bool_or("use_bidirectional_attention", false))
    reader.add_unsupported("use_bidirectional_attention", "is not supported yet");
}

/// Reads the windows of layers. Without layer_types, every `period`-th layer has full attention.
void read_windows(ConfigReader& reader, ModelConfig& config, int64_t period) {
  const int64_t window = read_window(reader);
  if (!read_layer_types(reader, config, window))
    set_periodic_windows(reader, config, window, period);
}

double read_softcap(ConfigReader& reader, const char* key, double class_default) {
  const bool is_null = reader.has(key) && !reader.find(key);
  return is_null ? 0 : reader.read_number_or(key, class_default, true);
}

void read_scores(ConfigReader& reader, ModelConfig& config) {
  config.attention_scale =
      1.0 / std::sqrt(reader.read_number_or("query_pre_attn_scalar", 256.0, true));
}

void read_gemma(ConfigReader& reader, ModelConfig& config) {
  read_common_part(reader, config);
  // "gelu" in the first releases means the tanh approximation, with which the models were trained.
  if (config.activation == Activation::kGelu) config.activation = Activation::kGeluTanh;
  const std::string other = reader.read_text_or("hidden_activation", "gelu_pytorch_tanh");
  if (other != "gelu_pytorch_tanh" && other != "gelu")
    reader.add_unsupported("hidden_activation", "is not what hidden_act says");
}

void read_gemma2(ConfigReader& reader, ModelConfig& config) {
  read_common_part(reader, config);
  read_windows(reader, config, 2);
  read_scores(reader, config);
  config.attention_softcap = read_softcap(reader, "attn_logit_softcapping", 50.0);
  config.logit_softcap = read_softcap(reader, "final_logit_softcapping", 30.0);
}

void read_gemma3(ConfigReader& reader, ModelConfig& config) {
  read_common_part(reader, config);
  read_windows(reader, config, reader.read_integer_or("sliding_window_pattern", 6, {1, 10000}));
  read_scores(reader, config);
  config.qk_norm = QkNorm::kEachHead;
  config.attention_softcap = read_softcap(reader, "attn_logit_softcapping", 0);
  config.logit_softcap = read_softcap(reader, "final_logit_softcapping", 0);
}

}  // namespace

const Family kGemmaFamily{.model_type = "gemma",
                          .architecture = "GemmaForCausalLM",
                          .defaults = defaults(16, 8192),
                          .read = read_gemma};
const Family kGemma2Family{.model_type = "gemma2",
                           .architecture = "Gemma2ForCausalLM",
                           .keys = {.activation = "hidden_activation"},
                           .defaults = defaults(4, 8192),
                           .names = kNormedOutputs,
                           .read = read_gemma2};
const Family kGemma3Family{.model_type = "gemma3_text",
                           .architecture = "Gemma3ForCausalLM",
                           .keys = {.activation = "hidden_activation"},
                           .defaults = kGemma3Defaults,
                           .names = kNormedOutputs,
                           .window_rotation = true,
                           .read = read_gemma3};

}  // namespace ftrun
