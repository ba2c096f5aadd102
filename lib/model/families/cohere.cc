// Command R and R+ (cohere), Command R7B and A (cohere2) of Cohere. Attention and MLP are parallel
// and read one layer norm without a bias; logits are scaled; neighboring elements rotate together.
// In cohere2 only layers with a sliding window rotate. Command R+ has a layer norm for each query
// and key head.
#include "model/families.h"
#include "model/families/layer_types.h"

namespace ftrun {
namespace {

constexpr ConfigKeys kCohereKeys{.norm_epsilon = "layer_norm_eps"};
constexpr ConfigKeys kCohere2Keys{.head_size = nullptr, .norm_epsilon = "layer_norm_eps"};
constexpr TensorNames kCohereNames{.mlp_norm = {}};

constexpr ConfigDefaults cohere_defaults(double theta) {
  return {.positions = 8192, .norm_epsilon = 1e-5, .rope_theta = theta, .pad_id = 0, .tied = true};
}

void read_parallel_blocks(ConfigReader& reader, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.norm_bias = false;
  config.parallel_residual = true;
  config.rotates_pairs = true;
  config.logit_scale = reader.read_number_or("logit_scale", 0.0625, true);
  config.qkv_bias = config.attention_out_bias = reader.read_bool_or("attention_bias", false);
}

void read_cohere(ConfigReader& reader, ModelConfig& config) {
  read_parallel_blocks(reader, config);
  if (reader.read_bool_or("use_qk_norm", false)) config.qk_norm = QkNorm::kLayerNormByHead;
}

void read_cohere2(ConfigReader& reader, ModelConfig& config) {
  read_parallel_blocks(reader, config);
  const int64_t window = read_window(reader);
  if (!read_layer_types(reader, config, window))
    set_periodic_windows(reader, config, window,
                         reader.read_integer_or("sliding_window_pattern", 4, {1, 10000}));
  for (const int64_t each : config.windows) config.rotates.push_back(each > 0);
}

}  // namespace

const Family kCohereFamily{.model_type = "cohere",
                           .architecture = "CohereForCausalLM",
                           .keys = kCohereKeys,
                           .defaults = cohere_defaults(5e5),
                           .names = kCohereNames,
                           .read = read_cohere};
const Family kCohere2Family{.model_type = "cohere2",
                            .architecture = "Cohere2ForCausalLM",
                            .keys = kCohere2Keys,
                            .defaults = cohere_defaults(1e4),
                            .names = kCohereNames,
                            .read = read_cohere2};

}  // namespace ftrun
