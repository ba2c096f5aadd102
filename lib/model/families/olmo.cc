// OLMo of Ai2: Llama's blocks with layer norms that have neither a weight nor a bias.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/families.h"

namespace ftrun {
namespace {

void read_olmo(ConfigReader& reader, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.norm_weight = config.norm_bias = false;
  config.qkv_bias = config.attention_out_bias = reader.read_bool_or("attention_bias", false);
  if (const nlohmann::json* const bound = reader.find("clip_qkv"))
    reader.add_unsupported("clip_qkv", cat("found ", json_value_text(*bound),
                                           "; queries, keys and values that are clipped to a bound "
                                           "are not supported yet (null is)"));
}

}  // namespace

const Family kOlmoFamily{.model_type = "olmo",
                         .architecture = "OlmoForCausalLM",
                         .keys = {.norm_epsilon = nullptr},
                         .defaults = {.positions = 2048, .norm_epsilon = 1e-5, .pad_id = 1},
                         .read = read_olmo};

}  // namespace ftrun
