// StarCoder 2 of BigCode: layer norms, an ungated MLP, biases in all linear layers, one sliding
// window for all layers or none.
#include <algorithm>

#include "model/families.h"
#include "model/families/layer_types.h"

namespace ftrun {
namespace {

void read_starcoder2(ConfigReader& reader, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.qkv_bias = config.attention_out_bias = config.mlp_bias =
      reader.read_bool_or("use_bias", true);
  const int64_t window = reader.find("sliding_window") ? read_window(reader) : 0;
  std::fill(config.windows.begin(), config.windows.end(), window);
  record_dropouts(reader, config, {"embedding_dropout", "residual_dropout"});
}

}  // namespace

const Family kStarcoder2Family{
    .model_type = "starcoder2",
    .architecture = "Starcoder2ForCausalLM",
    .keys = {.norm_epsilon = "norm_epsilon"},
    .defaults = {.kv_heads = 2,
                 .positions = 4096,
                 .norm_epsilon = 1e-5,
                 .activation = "gelu_pytorch_tanh",
                 .tied = true},
    .names = {.linear_layers = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                "self_attn.o_proj", "", "mlp.c_fc", "mlp.c_proj"}},
    .read = read_starcoder2};

}  // namespace ftrun
