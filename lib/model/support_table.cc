#include "model/support_table.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/module_names.h"
#include "base/text.h"
#include "model/adapter.h"
#include "model/families.h"
#include "model/readable_quantizations.h"
#include "ops/activation/activation_traits.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kIntroduction =
    "# Supported model families\n\nUse this page to look up which model families ftrun trains, and "
    "which features of a model and of a run each family supports. "
    "[model-accuracy.md](model-accuracy.md) shows how closely the numbers of each family agree "
    "with transformers. `ftrun schema --models` writes this page: it tries each feature on a small "
    "model of each family, and a test compares the page with the result. CONTRIBUTING.md explains "
    "how to add a family.\n\nEvery family "
    "trains on data-parallel ranks with all ZeRO stages and tiers, on tensor-parallel ranks and in "
    "pipelines, on CPUs and on GPUs. [config.md](config.md) lists what has run only on emulated "
    "GPUs. In a multimodal model (`gemma3`, `mistral3`) the decoder trains on text, and all other "
    "parts stay unchanged.\n\n";

constexpr const char* kRotations =
    "`longrope` (also `su`) has one list of factors for sequences of up to "
    "`original_max_position_embeddings` tokens, and another for longer ones. transformers chooses "
    "the list by the longest sequence of each batch. A run chooses once, by "
    "`data.sequence_length`, for training and evaluation, and a notice names the list. `yarn` "
    "supports all keys that transformers reads; other keys of its object are refused by name, and "
    "so are other keys of `longrope`. If `data.sequence_length` exceeds the positions of the "
    "model, a notice names the scaling that would reach that length.\n\n";

/// Makes the config.json of a small model of a family, without dropout.
Json small_config(const Family& family) {
  const ConfigKeys& keys = family.keys;
  Json json{{"model_type", family.model_type},
            {"architectures", {family.architecture}},
            {"vocab_size", 512},
            {keys.hidden, 256},
            {keys.layers, 2},
            {keys.query_heads, 4},
            {keys.positions, 1024},
            {keys.attention_dropout, 0},
            {"embd_pdrop", 0},
            {"resid_pdrop", 0},
            {"dropout", 0},
            {"pad_token_id", 0}};
  if (keys.feed_forward != nullptr) json[keys.feed_forward] = 512;
  if (keys.kv_heads != nullptr) json[keys.kv_heads] = 2;
  if (keys.head_size != nullptr) json[keys.head_size] = 64;
  return json;
}

constexpr const char* kWhere = "config.json";

ModelConfig parse_small_config(const Json& json) {
  return parse_model_config(json.dump(), kWhere);
}

/// RequestedFeatures holds the features that a run requires of a model.
struct RequestedFeatures {
  int tensor_ranks = 1;
  bool sequence = true;
  bool adapts = false;
  bool magnitudes = false;
  QuantizationType quantized = QuantizationType::kNone;
};

/// Feature is a row of the table: changes of the small model's config.json, or a request.
struct Feature {
  std::string name;
  std::function<Json(const Family&)> change = [](const Family&) { return Json::object(); };
  RequestedFeatures request = {};
};

auto always_change(Json change) {
  return [change = std::move(change)](const Family&) { return change; };
}

Json rope_change(Json scaling) {
  return {{"rope_scaling", std::move(scaling)}};
}

/// Returns the change that requests longrope, with a factor for each rotating pair of the family's
/// small model.
Json longrope_change(const Family& family) {
  const ModelConfig config = parse_small_config(small_config(family));
  const double rotated = static_cast<double>(config.head_size) * config.rope.partial;
  const Json factors(std::vector<double>(static_cast<size_t>(rotated / 2), 2.0));
  return rope_change({{"rope_type", "longrope"},
                      {"original_max_position_embeddings", 512},
                      {"short_factor", factors},
                      {"long_factor", factors}});
}

std::vector<Feature> config_features() {
  std::vector<Feature> features{
      {"`tie_word_embeddings: true`", always_change({{"tie_word_embeddings", true}})},
      {"`tie_word_embeddings: false`", always_change({{"tie_word_embeddings", false}})},
      {"`attention_bias: true`", always_change({{"attention_bias", true}})},
      {"`mlp_bias: true`", always_change({{"mlp_bias", true}})},
      {"`qk_layernorm: true`", always_change({{"qk_layernorm", true}})},
      {"`use_qk_norm: true`", always_change({{"use_qk_norm", true}})},
      {"`alibi: true`", always_change({{"alibi", true}})},
      {"`new_decoder_architecture: true`",
       always_change({{"new_decoder_architecture", true}, {"num_kv_heads", 2}})},
      {"`sliding_window`",
       always_change(
           {{"sliding_window", 64}, {"use_sliding_window", true}, {"max_window_layers", 0}})},
      {"rope `linear`", always_change(rope_change({{"rope_type", "linear"}, {"factor", 2.0}}))},
      {"rope `llama3`", always_change(rope_change({{"rope_type", "llama3"},
                                                   {"factor", 8.0},
                                                   {"low_freq_factor", 1.0},
                                                   {"high_freq_factor", 4.0},
                                                   {"original_max_position_embeddings", 512}}))},
      {"rope `yarn`",
       always_change(rope_change(
           {{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 512}}))},
      {"rope `longrope`", longrope_change},
      {"rope `dynamic`", always_change(rope_change({{"rope_type", "dynamic"}, {"factor", 2.0}}))},
      {"`partial_rotary_factor`", always_change({{"partial_rotary_factor", 0.5}})},
  };
  for (const ActivationTraits& traits : kActivationTraits)
    features.push_back({cat("activation ", traits.name),
                        [name = std::string(traits.config_names[0])](const Family& family) {
                          return Json{{family.keys.activation, name}};
                        }});
  features.push_back({"attention dropout in training", [](const Family& family) {
                        return Json{{family.keys.attention_dropout, 0.1}};
                      }});
  return features;
}

std::vector<Feature> run_features() {
  const auto nothing = always_change(Json::object());
  return {
      {"tensor-parallel ranks", nothing, {.tensor_ranks = 2, .sequence = false}},
      {"... with sequence parallelism", nothing, {.tensor_ranks = 2}},
      {"LoRA on all linear modules", nothing, {.adapts = true}},
      {"... on tensor-parallel ranks", nothing, {.tensor_ranks = 2, .adapts = true}},
      {"DoRA", nothing, {.adapts = true, .magnitudes = true}},
      {"`quantization: {type: nf4}`",
       nothing,
       {.adapts = true, .quantized = QuantizationType::kNf4}},
      {"`quantization: {type: int8}`",
       nothing,
       {.adapts = true, .quantized = QuantizationType::kInt8}},
      {"... nf4 on tensor-parallel ranks",
       nothing,
       {.tensor_ranks = 2, .adapts = true, .quantized = QuantizationType::kNf4}},
  };
}

/// Builds the model as a training step with the requested features needs it.
void try_build_model(const ModelConfig& config, const RequestedFeatures& request) {
  LoraOptions lora;
  lora.target_modules = {std::string(kAllLinear)};
  lora.magnitudes = request.magnitudes;
  ModelDtypes dtypes;
  dtypes.quantized.type = request.quantized;
  dtypes.quantized.double_quantized = request.quantized == QuantizationType::kNf4;
  const Adapter adapter = request.adapts ? make_adapter(config, lora) : Adapter{};
  build_model(config, {.sequences = 1, .sequence_length = 64}, GraphMode::kTrain, dtypes, {},
              {.degree = request.tensor_ranks, .index = 0, .sequence = request.sequence}, adapter);
}

/// Removes the rope settings of a model with learned positions, which does not rotate whatever its
/// config says.
ModelConfig without_idle_rope(ModelConfig config) {
  if (config.learned_positions) config.rope = {};
  return config;
}

/// Notes collects the limits of features, and numbers them in the order in which they occur.
class Notes {
 public:
  std::string add_limit(const Error& limit) {
    std::string text = limit.message();
    for (const std::string& before : {cat(kWhere, ":\n  "), cat(kWhere, ": ")})
      if (text.starts_with(before)) text.erase(0, before.size());
    for (size_t at = 0; (at = text.find("\n  ", at)) != std::string::npos;)
      text.replace(at, 3, "; ");
    std::replace(text.begin(), text.end(), '\n', ' ');
    auto found = std::find(texts_.begin(), texts_.end(), text);
    if (found == texts_.end()) found = texts_.insert(texts_.end(), text);
    return cat("no [", found - texts_.begin() + 1, "]");
  }

  std::string numbered_list() const {
    std::string lines;
    for (size_t i = 0; i < texts_.size(); ++i) lines += cat(i + 1, ". ", texts_[i], "\n");
    return lines;
  }

 private:
  std::vector<std::string> texts_;
};

/// Returns the table cell of a feature: "yes", "unchanged" if it changes nothing in the model, or
/// "no" and the number of the limit.
std::string feature_cell(const Family& family, const Feature& feature, Notes& notes) {
  Json json = small_config(family);
  const Json change = feature.change(family);
  const bool is_run = change.empty();
  try {
    const ModelConfig base = parse_small_config(json);
    json.update(change);
    const ModelConfig changed = parse_small_config(json);
    try_build_model(changed, feature.request);
    const bool is_same = without_idle_rope(changed) == without_idle_rope(base);
    return is_run || !is_same ? "yes" : "unchanged";
  } catch (const Error& limit) {
    if (limit.code() == ExitCode::kBug) throw;
    return notes.add_limit(limit);
  }
}

std::string table_row(const std::vector<std::string>& cells) {
  return cat("| ", join(cells, " | "), " |\n");
}

std::string table_head(std::vector<std::string> cells) {
  const std::string names = table_row(cells);
  std::fill(cells.begin(), cells.end(), "---");
  return names + table_row(cells);
}

std::string feature_table(const char* title, const std::vector<Feature>& features, Notes& notes) {
  std::vector<std::string> columns{title};
  for (const Family& family : families()) columns.emplace_back(family.model_type);
  std::string text = table_head(columns);
  for (const Feature& feature : features) {
    std::vector<std::string> cells{feature.name};
    for (const Family& family : families()) cells.push_back(feature_cell(family, feature, notes));
    text += table_row(cells);
  }
  return text + "\n";
}

std::string norm_text(const ModelConfig& config) {
  std::string text = !config.norm_weight                          ? "layer norm without weights"
                     : config.norm == NormKind::kLayer            ? "layer norm"
                     : config.norm == NormKind::kRmsStoredLessOne ? "RMSNorm (weight + 1)"
                                                                  : "RMSNorm";
  if (config.output_norms)
    text += config.input_norm ? ", also after attention and MLP" : ", only after attention and MLP";
  if (config.qk_norm != QkNorm::kNone)
    text += config.qk_norm == QkNorm::kAllHeads ? ", of all query and of all key heads together"
                                                : ", of each query and key head";
  return text;
}

std::string family_table() {
  std::string text = table_head({"`model_type`", "class", "linear modules", "adapted by default",
                                 "norms", "MLP", "positions"});
  for (const Family& family : families()) {
    const ModelConfig config = parse_small_config(small_config(family));
    std::vector<std::string> modules;
    for (const LinearModule& module : linear_modules(family.names))
      modules.push_back(cat(
          last_path_part(module.name),
          module.projections.size() > 1 ? cat(" (", module.projections.size(), " fused)") : ""));
    text +=
        table_row({std::string(family.model_type), std::string(family.architecture),
                   join(modules, ", ") + (family.names.transposed ? "; transposed in files" : ""),
                   join(default_target_modules(family.names), ", "), norm_text(config),
                   config.gated ? "gated" : "ungated",
                   config.learned_positions ? "learned"
                   : config.window_rope     ? "RoPE, another base in sliding-window layers"
                                            : "RoPE"});
  }
  return text + "\n";
}

}  // namespace

std::string support_markdown() {
  Notes notes;
  std::string text = kIntroduction + family_table();
  text +=
      "## Features in config.json\n\n`unchanged` means that the model is the same as without the "
      "key: the value is the family's default, or the family's class does not read the key, in "
      "ftrun as in transformers.\n\n";
  text += feature_table("config.json", config_features(), notes);
  text += kRotations;
  text += "## Features of a run\n\n" + feature_table("run", run_features(), notes);
  std::vector<std::string> methods(kReadableQuantizations.begin(), kReadableQuantizations.end());
  text += cat("ftrun reads models that were published quantized if their `quant_method` is ",
              join(methods, " or "),
              " ([checkpoint.md](checkpoint.md#hugging-face-model-folders)).\n\n## Limits\n\n"
              "The messages are those for the small models that were tried. A number of tokens in "
              "them is\nthe `max_position_embeddings` of such a model; for your model ftrun prints "
              "your model's\nnumber.\n\n");
  return text + notes.numbered_list();
}

}  // namespace ftrun
