// The dense Phi-3, Phi-3.5 and Phi-4 models of Microsoft: Llama's blocks. Files store q, k and v as
// one matrix, and gate and up as another. Phi-4-mini rotates a part of each head. The models for
// 128k tokens have longrope.
#include <algorithm>

#include "model/families.h"
#include "model/families/layer_types.h"

namespace ftrun {
namespace {

void read_phi3(ConfigReader& reader, ModelConfig& config) {
  const int64_t window = reader.find("sliding_window") ? read_window(reader) : 0;
  std::fill(config.windows.begin(), config.windows.end(), window);
  record_dropouts(reader, config, {"embd_pdrop", "resid_pdrop"});
}

}  // namespace

const Family kPhi3Family{
    .model_type = "phi3",
    .architecture = "Phi3ForCausalLM",
    .defaults = {.positions = 4096, .original_positions = 4096, .norm_epsilon = 1e-5},
    .names = {.linear_layers = {"self_attn.qkv_proj", "self_attn.qkv_proj", "self_attn.qkv_proj",
                                "self_attn.o_proj", "mlp.gate_up_proj", "mlp.gate_up_proj",
                                "mlp.down_proj"},
              .default_targets = {"qkv_proj"}},
    .rotates_partly = true,
    .yarn_is_longrope = true,
    .read = read_phi3};

}  // namespace ftrun
