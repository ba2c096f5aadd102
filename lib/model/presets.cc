#include "model/presets.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr const char* kHub = "config.json of the model on the Hugging Face Hub";
constexpr const char* kLlama2 = "Touvron et al. 2023, \"Llama 2\"; config.json on the Hub";
constexpr const char* kLlama3 = "Grattafiori et al. 2024, \"The Llama 3 Herd of Models\", table 3";
constexpr const char* kGpt2 = "Radford et al. 2019, table 2; config.json on the Hub";
constexpr const char* kGpt3 =
    "Brown et al. 2020, table 2.1, with GPT-2's vocabulary; widths and heads that do not go "
    "together there (XL, 13B) as in Megatron-LM";
constexpr const char* kOpt = "Zhang et al. 2022, \"OPT\", table 1; config.json on the Hub";

// clang-format off
constexpr ModelPreset kPresets[] = {
    // name            family  layers hidden heads  kv  head    ffn   vocab positions tied   source
    {"smollm2-135m",    "llama",   30,   576,   9,   3,  64,  1536,  49152,   8192, true,  kHub},
    {"smollm2-360m",    "llama",   32,   960,  15,   5,  64,  2560,  49152,   8192, true,  kHub},
    {"smollm2-1.7b",    "llama",   24,  2048,  32,  32,  64,  8192,  49152,   8192, true,  kHub},
    {"llama-2-7b",      "llama",   32,  4096,  32,  32, 128, 11008,  32000,   4096, false, kLlama2},
    {"llama-2-13b",     "llama",   40,  5120,  40,  40, 128, 13824,  32000,   4096, false, kLlama2},
    {"llama-2-70b",     "llama",   80,  8192,  64,   8, 128, 28672,  32000,   4096, false, kLlama2},
    {"llama-3-8b",      "llama",   32,  4096,  32,   8, 128, 14336, 128256,   8192, false, kLlama3},
    {"llama-3-70b",     "llama",   80,  8192,  64,   8, 128, 28672, 128256,   8192, false, kLlama3},
    {"llama-3.1-8b",    "llama",   32,  4096,  32,   8, 128, 14336, 128256, 131072, false, kLlama3},
    {"llama-3.1-70b",   "llama",   80,  8192,  64,   8, 128, 28672, 128256, 131072, false, kLlama3},
    {"llama-3.1-405b",  "llama",  126, 16384, 128,   8, 128, 53248, 128256, 131072, false, kLlama3},
    {"llama-3.2-1b",    "llama",   16,  2048,  32,   8,  64,  8192, 128256, 131072, true,  kHub},
    {"llama-3.2-3b",    "llama",   28,  3072,  24,   8, 128,  8192, 128256, 131072, true,  kHub},
    {"mistral-7b",      "mistral", 32,  4096,  32,   8, 128, 14336,  32000,  32768, false, kHub},
    {"qwen2.5-0.5b",    "qwen2",   24,   896,  14,   2,  64,  4864, 151936,  32768, true,  kHub},
    {"qwen2.5-1.5b",    "qwen2",   28,  1536,  12,   2, 128,  8960, 151936, 131072, true,  kHub},
    {"qwen2.5-3b",      "qwen2",   36,  2048,  16,   2, 128, 11008, 151936,  32768, true,  kHub},
    {"qwen2.5-7b",      "qwen2",   28,  3584,  28,   4, 128, 18944, 152064, 131072, false, kHub},
    {"qwen2.5-14b",     "qwen2",   48,  5120,  40,   8, 128, 13824, 152064, 131072, false, kHub},
    {"qwen2.5-32b",     "qwen2",   64,  5120,  40,   8, 128, 27648, 152064, 131072, false, kHub},
    {"qwen2.5-72b",     "qwen2",   80,  8192,  64,   8, 128, 29568, 152064, 131072, false, kHub},
    {"qwen3-0.6b",      "qwen3",   28,  1024,  16,   8, 128,  3072, 151936,  40960, true,  kHub},
    {"qwen3-1.7b",      "qwen3",   28,  2048,  16,   8, 128,  6144, 151936,  40960, true,  kHub},
    {"qwen3-4b",        "qwen3",   36,  2560,  32,   8, 128,  9728, 151936,  40960, true,  kHub},
    {"qwen3-8b",        "qwen3",   36,  4096,  32,   8, 128, 12288, 151936,  40960, false, kHub},
    {"qwen3-14b",       "qwen3",   40,  5120,  40,   8, 128, 17408, 151936,  40960, false, kHub},
    {"qwen3-32b",       "qwen3",   64,  5120,  64,   8, 128, 25600, 151936,  40960, false, kHub},
    {"gpt2",            "gpt2",    12,   768,  12,  12,  64,  3072,  50257,   1024, true,  kGpt2},
    {"gpt2-medium",     "gpt2",    24,  1024,  16,  16,  64,  4096,  50257,   1024, true,  kGpt2},
    {"gpt2-large",      "gpt2",    36,  1280,  20,  20,  64,  5120,  50257,   1024, true,  kGpt2},
    {"gpt2-xl",         "gpt2",    48,  1600,  25,  25,  64,  6400,  50257,   1024, true,  kGpt2},
    {"gpt3-1.3b",       "gpt2",    24,  2048,  16,  16, 128,  8192,  50257,   2048, true,  kGpt3},
    {"gpt3-6.7b",       "gpt2",    32,  4096,  32,  32, 128, 16384,  50257,   2048, true,  kGpt3},
    {"gpt3-13b",        "gpt2",    40,  5120,  40,  40, 128, 20480,  50257,   2048, true,  kGpt3},
    {"gpt3-175b",       "gpt2",    96, 12288,  96,  96, 128, 49152,  50257,   2048, true,  kGpt3},
    {"opt-1.3b",        "opt",     24,  2048,  32,  32,  64,  8192,  50272,   2048, true,  kOpt},
    {"opt-6.7b",        "opt",     32,  4096,  32,  32, 128, 16384,  50272,   2048, true,  kOpt},
};
// clang-format on

constexpr int64_t kRows = 32000;

int64_t round_to(double value, int64_t multiple) {
  return std::max<int64_t>(std::llround(value / static_cast<double>(multiple)), 1) * multiple;
}

}  // namespace

std::span<const ModelPreset> model_presets() {
  return kPresets;
}

const ModelPreset& find_preset(std::string_view name) {
  std::vector<std::string> names;
  for (const ModelPreset& preset : kPresets) {
    if (preset.name == name) return preset;
    names.emplace_back(preset.name);
  }
  throw Error(ExitCode::kUsage,
              cat("\"", name, "\" is neither a config.json, nor a folder that holds one, nor a ",
                  "known model", did_you_mean(closest_match(std::string(name), names))),
              cat("name one of ", join(names, ", "), "; or give --params 7B for one of any size"));
}

ModelConfig preset_config(const ModelPreset& preset, const std::string& name) {
  nlohmann::ordered_json json{{"model_type", preset.family},
                              {"vocab_size", preset.vocab},
                              {"tie_word_embeddings", preset.tied}};
  if (preset.family == "gpt2") {
    json["n_layer"] = preset.layers;
    json["n_embd"] = preset.hidden;
    json["n_head"] = preset.query_heads;
    json["n_inner"] = preset.feed_forward;
    json["n_positions"] = preset.positions;
    for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json[key] = 0.0;
    return parse_model_config(json.dump(), name);
  }
  json["num_hidden_layers"] = preset.layers;
  json["hidden_size"] = preset.hidden;
  json["num_attention_heads"] = preset.query_heads;
  json["max_position_embeddings"] = preset.positions;
  if (preset.family == "opt") {
    json["ffn_dim"] = preset.feed_forward;
    json["word_embed_proj_dim"] = preset.hidden;
    json["dropout"] = 0.0;
    return parse_model_config(json.dump(), name);
  }
  json["intermediate_size"] = preset.feed_forward;
  json["num_key_value_heads"] = preset.kv_heads;
  json["head_dim"] = preset.head_size;
  return parse_model_config(json.dump(), name);
}

int64_t parse_parameter_count(std::string_view text) {
  std::string_view unit = text;
  const double number = consume_number(unit).value_or(0);
  const double factor = unit == "B" || unit == "b" ? 1e9 : unit == "M" || unit == "m" ? 1e6 : 0;
  const double count = number * factor;
  if (count >= 5e7 && count <= 1e13) return std::llround(count);
  throw Error(ExitCode::kUsage,
              cat("--params ", text, ": expected a number of parameters from 50M to 10000B"),
              "give it with its unit, for example 7B, 1.3B or 350M");
}

ModelPreset preset_of_size(int64_t parameters) {
  const bool is_small = parameters < 1'500'000'000;
  const int64_t head = is_small ? 64 : 128, heads = 8, step = heads * head;
  const auto count = static_cast<double>(parameters);
  std::optional<ModelPreset> best;
  double best_deviation = 0;
  for (int64_t hidden = step; hidden <= 128 * step; hidden += step) {
    const int64_t layers = round_to(static_cast<double>(hidden) / 128, 4);
    const auto width = static_cast<double>(hidden), depth = static_cast<double>(layers);
    // Parameters outside the MLP: the embedding, the head and the last norm, and in each layer four
    // matrices of attention and two norms. The MLP has three matrices.
    const double non_mlp_parameters =
        2 * kRows * width + width + depth * (4 * width * width + 2 * width);
    const double mlp_width = (count - non_mlp_parameters) / (3 * width * depth);
    const double deviation = std::abs(std::log(std::max(mlp_width, 1e-3) / (width * 8 / 3)));
    if (best && deviation >= best_deviation) continue;
    best_deviation = deviation;
    best = ModelPreset{"",
                       "llama",
                       layers,
                       hidden,
                       hidden / head,
                       hidden / head,
                       head,
                       round_to(mlp_width, 64),
                       kRows,
                       4096,
                       false,
                       "the rule of --params (docs/plan.md)"};
  }
  return *best;
}

}  // namespace ftrun
