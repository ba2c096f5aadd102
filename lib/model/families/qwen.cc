// Qwen2 (biases of query, key and value) and Qwen3 (norms of query and key heads). Both may give
// their upper layers a sliding window.
#include "model/families.h"
#include "model/families/layer_types.h"

namespace ftrun {
namespace {

constexpr int64_t kDefaultFullLayers = 28;

void read_windows(ConfigReader& reader, ModelConfig& config) {
  int64_t window = read_window(reader);
  if (!reader.read_bool_or("use_sliding_window", false)) window = 0;
  const int64_t full =
      reader.read_integer_or("max_window_layers", kDefaultFullLayers, {0, 1 << 20});
  if (read_layer_types(reader, config, window)) return;
  for (int64_t i = full; i < config.layers; ++i) config.windows[static_cast<size_t>(i)] = window;
}

void read_qwen2(ConfigReader& reader, ModelConfig& config) {
  config.qkv_bias = true;
  read_windows(reader, config);
}

void read_qwen3(ConfigReader& reader, ModelConfig& config) {
  const bool attention_bias = reader.read_bool_or("attention_bias", false);
  config.qkv_bias = attention_bias;
  config.attention_out_bias = attention_bias;
  config.qk_norm = QkNorm::kEachHead;
  read_windows(reader, config);
}

}  // namespace

const Family kQwen2Family{.model_type = "qwen2",
                          .architecture = "Qwen2ForCausalLM",
                          .defaults = {.kv_heads = 32},
                          .read = read_qwen2};
const Family kQwen3Family{.model_type = "qwen3",
                          .architecture = "Qwen3ForCausalLM",
                          .defaults = {.kv_heads = 32, .head_size = 128},
                          .read = read_qwen3};

}  // namespace ftrun
