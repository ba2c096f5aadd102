#include "model/model_config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "model/config_reader.h"
#include "model/families.h"
#include "model/multimodal.h"
#include "model/readable_quantizations.h"
#include "model/rope_reader.h"
#include "ops/activation/activation_traits.h"

namespace ftrun {
namespace {

using nlohmann::json;

// The largest size of config.json's text in bytes. The file has the same limit
// (checkpoint/model_folder.h).
constexpr size_t kMaxConfigText = size_t{4} << 20;
// The largest width of a projection (heads times head size). WholeNumberRange bounds the other
// dimensions.
constexpr int64_t kWidest = int64_t{1} << 20;
constexpr WholeNumberRange kTokenIds{-1, int64_t{1} << 31};

json parse_json(std::string_view text, const std::string& where) {
  if (text.size() > kMaxConfigText) {
    throw Error(ExitCode::kBadInput,
                cat(where, ": ", text.size(), " bytes; a model's configuration has at most ",
                    kMaxConfigText));
  }
  refuse_wide_encoding(text, where);
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    std::string what = error.what();
    if (const size_t at = what.find("] "); at != std::string::npos) what.erase(0, at + 2);
    if (what.size() > 160) what = what.substr(0, 160) + "...";
    throw Error(ExitCode::kBadInput, cat(where, ": not valid JSON: ", what));
  }
}

/// Returns the model_type of an object at `prefix` of config.json.
std::string read_model_type(const json& object, const std::string& where, std::string_view prefix) {
  if (!object.is_object()) {
    throw Error(ExitCode::kBadInput,
                cat(where, ": found ", json_value_text(object), "; expected an object"));
  }
  const auto it = object.find("model_type");
  if (it == object.end() || !it->is_string()) {
    throw Error(ExitCode::kBadInput,
                cat(where, ": ", prefix, "model_type: ",
                    it == object.end() ? "missing" : "found " + json_value_text(*it),
                    "; expected a text such as \"llama\""),
                "give a Hugging Face model folder");
  }
  return it->get<std::string>();
}

const Family& check_family(const std::string& model_type, const std::string& where,
                           std::string_view prefix) {
  const Family* family = find_family(model_type);
  if (!family) {
    throw Error(ExitCode::kUnsupported,
                cat(where, ": ", prefix, "model_type ", json_value_text(model_type),
                    " is not supported yet"),
                cat("use a model of a supported family: ", family_names(), ", or a decoder of ",
                    multimodal_names()));
  }
  return *family;
}

/// Reads a whole number that has the default `class_default` in the family's config class; 0:
/// config.json must give it.
int64_t read_integer_or_class_default(ConfigReader& reader, const char* key, int64_t class_default,
                                      WholeNumberRange range) {
  return class_default == 0 ? reader.read_integer(key, range)
                            : reader.read_integer_or(key, class_default, range);
}

void read_heads(ConfigReader& reader, ModelConfig& config, const Family& family) {
  constexpr WholeNumberRange kHeads{1, 1 << 14};
  const ConfigKeys& keys = family.keys;
  const ConfigDefaults& defaults = family.defaults;
  config.query_heads =
      read_integer_or_class_default(reader, keys.query_heads, defaults.query_heads, kHeads);
  config.kv_heads = config.query_heads;
  if (keys.kv_heads) {
    const bool absent = !reader.has(keys.kv_heads) && defaults.kv_heads != 0;
    config.kv_heads = absent ? defaults.kv_heads
                             : reader.read_integer_or(keys.kv_heads, config.query_heads, kHeads);
  }
  if (!keys.head_size) return;
  const bool absent = !reader.has(keys.head_size) && defaults.head_size != 0;
  config.head_size =
      absent ? defaults.head_size : reader.read_integer_or(keys.head_size, 0, {1, 1 << 13});
}

/// Checks that the dimensions fit together, and computes the head size if config.json does not give
/// it.
void finish_heads(ConfigReader& reader, ModelConfig& config, const Family& family) {
  if (!reader.has_no_problems()) return;
  const ConfigKeys& keys = family.keys;
  const int64_t heads = config.query_heads;
  const char* const size_key = keys.head_size ? keys.head_size : keys.hidden;
  if (heads % config.kv_heads != 0) {
    reader.add_problem(keys.kv_heads,
                       cat(config.kv_heads, " does not divide ", keys.query_heads, " ", heads));
  }
  if (config.head_size == 0 && config.hidden % heads != 0) {
    reader.add_problem(keys.hidden,
                       cat(config.hidden, " is not a multiple of ", keys.query_heads, " ", heads,
                           keys.head_size ? cat(", and there is no ", keys.head_size) : ""));
    return;
  }
  if (config.head_size == 0) config.head_size = config.hidden / heads;
  if (config.head_size % 2 != 0) {
    reader.add_problem(size_key, cat(config.head_size, " is odd; the rotation needs pairs"));
  }
  if (config.rotary_size() % 2 != 0 && config.head_size % 2 == 0) {
    reader.add_problem(keys.partial_rotary,
                       cat(number_text(config.rope.partial), " of ", config.head_size, " is ",
                           config.rotary_size(), ", which is odd; the rotation needs pairs"));
  }
  if (config.head_size * heads > kWidest) {
    reader.add_problem(size_key, cat(config.head_size, " times ", keys.query_heads, " ", heads,
                                     " is above ", kWidest));
  }
}

std::optional<DType> read_dtype(const ConfigReader& reader) {
  const json* value = reader.find("dtype");
  if (!value) value = reader.find("torch_dtype");
  if (!value || !value->is_string()) return std::nullopt;
  const auto name = value->get<std::string>();
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  return std::nullopt;
}

std::optional<int64_t> read_token(ConfigReader& reader, const char* key) {
  const json* value = reader.find(key);
  // Some files give a list; generation takes its first entry from generation_config.json instead.
  if (!value || value->is_array()) return std::nullopt;
  const int64_t id = reader.read_integer_or(key, -1, kTokenIds);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::vector<int64_t> read_eos(ConfigReader& reader) {
  const json* value = reader.find("eos_token_id");
  if (!value) return {};
  if (!value->is_array()) {
    const auto id = read_token(reader, "eos_token_id");
    return id ? std::vector<int64_t>{*id} : std::vector<int64_t>{};
  }
  std::vector<int64_t> out;
  for (const json& item : *value) {
    if (!item.is_number_unsigned() ||
        item.get<uint64_t>() > static_cast<uint64_t>(kTokenIds.high)) {
      reader.add_problem("eos_token_id", cat("entry ", out.size(), " is ", json_value_text(item),
                                             "; expected a token id"));
      return {};
    }
    out.push_back(item.get<int64_t>());
  }
  return out;
}

/// Returns the embedding row that torch would use for this padding_idx. (transformers does not open
/// a model whose padding_idx is outside the table.)
std::optional<int64_t> find_padding_row(ConfigReader& reader, const ModelConfig& config) {
  if (config.pad_id) return *config.pad_id < config.vocab_rows ? config.pad_id : std::nullopt;
  const json* value = reader.find("pad_token_id");
  return value && *value == -1 ? std::optional(config.vocab_rows - 1) : std::nullopt;
}

void read_common(ConfigReader& reader, ModelConfig& config, const Family& family) {
  const ConfigKeys& keys = family.keys;
  const ConfigDefaults& defaults = family.defaults;
  config.vocab_rows = read_integer_or_class_default(reader, "vocab_size", defaults.vocab_rows,
                                                    {1, int64_t{1} << 24});
  config.hidden = read_integer_or_class_default(reader, keys.hidden, defaults.hidden, {});
  if (keys.feed_forward)
    config.feed_forward = reader.read_integer(keys.feed_forward, {1, int64_t{1} << 22});
  config.layers = read_integer_or_class_default(reader, keys.layers, defaults.layers, {1, 10000});
  config.max_positions =
      reader.read_integer_or(keys.positions, defaults.positions, {1, int64_t{1} << 40});
  read_heads(reader, config, family);
  config.norm_epsilon = keys.norm_epsilon
                            ? reader.read_number_or(keys.norm_epsilon, defaults.norm_epsilon, true)
                            : defaults.norm_epsilon;
  config.tied = reader.read_bool_or("tie_word_embeddings", defaults.tied);
  const double dropout =
      reader.read_number_or(keys.attention_dropout, defaults.attention_dropout, false);
  if (dropout != 0) config.dropouts.emplace_back(keys.attention_dropout);
  if (dropout < 0 || dropout >= 1) {
    reader.add_problem(keys.attention_dropout, cat("found ", number_text(dropout),
                                                   "; expected a number from 0 to below 1"));
  }
  if (family.window_rotation) {
    const LayerRopes ropes = read_layer_ropes(reader, config, family);
    config.rope = ropes.full;
    if (ropes.window != ropes.full) config.window_rope = ropes.window;
  } else {
    config.rope = read_rope(reader, config, family);
  }
  config.windows.assign(static_cast<size_t>(config.layers), 0);
  config.dtype = read_dtype(reader);
  config.eos_ids = read_eos(reader);
  config.bos_id = read_token(reader, "bos_token_id");
  config.pad_id = read_token(reader, "pad_token_id");
  if (!reader.has("pad_token_id") && defaults.pad_id >= 0) config.pad_id = defaults.pad_id;
  config.padding_row = find_padding_row(reader, config);
}

Activation read_activation(ConfigReader& reader, const Family& family) {
  const std::string name = reader.read_text_or(family.keys.activation, family.defaults.activation);
  std::vector<std::string> names;
  for (const ActivationTraits& traits : kActivationTraits)
    for (const std::string_view known : traits.config_names) {
      if (known.empty()) continue;
      if (name == known) return traits.activation;
      names.emplace_back(known);
    }
  std::sort(names.begin(), names.end());
  reader.add_unsupported(
      family.keys.activation,
      cat(json_value_text(name), " is not supported yet (", join(names, ", "), " are)"));
  return Activation::kSilu;
}

/// Refuses a model whose weights are quantized in a format that ftrun does not read
/// (checkpoint/quantized_weights).
void check_quantization(ConfigReader& reader) {
  const json* value = reader.find("quantization_config");
  if (!value) return;
  static const std::map<std::string, std::string_view> kNames{
      {"awq", "AWQ"},     {"compressed-tensors", "compressed-tensors"},
      {"gptq", "GPTQ"},   {"hqq", "HQQ"},
      {"mxfp4", "MXFP4"}, {"torchao", "torchao"}};
  const auto method_key = value->is_object() ? value->find("quant_method") : value->end();
  const bool names_one =
      value->is_object() && method_key != value->end() && method_key->is_string();
  const std::string method = names_one ? method_key->get<std::string>() : "";
  if (std::find(kReadableQuantizations.begin(), kReadableQuantizations.end(), method) !=
      kReadableQuantizations.end())
    return;
  const auto known = kNames.find(method);
  const std::string shown = known != kNames.end() ? std::string(known->second)
                            : names_one           ? json_value_text(*method_key)
                                                  : "an unnamed method";
  reader.add_unsupported(
      "quantization_config",
      cat("the weights are already quantized with ", shown,
          ", which ftrun cannot read (it reads fp8 with scales, and bitsandbytes); "
          "give the original "
          "model, which quantization quantizes while it is loaded"));
}

void check_common(ConfigReader& reader, ModelConfig& config, const Family& family) {
  const double window_share = config.window_rope ? config.window_rope->partial : 1.0;
  if ((config.rope.partial != 1.0 || window_share != 1.0) && !family.rotates_partly)
    reader.add_unsupported("partial_rotary_factor", "partial rotation is not supported yet");
  check_quantization(reader);
  const auto classes = reader.read_texts("architectures");
  const auto is_ours = [&](const std::string& name) { return name == family.architecture; };
  if (!classes.empty() && std::none_of(classes.begin(), classes.end(), is_ours)) {
    reader.add_unsupported("architectures",
                           cat(json_value_text(classes.front()), " is not supported yet (",
                               family.architecture, " is)"));
  }
  finish_heads(reader, config, family);
}

std::string findings_text(const std::vector<std::string>& findings) {
  return findings.size() == 1 ? " " + findings.front() : "\n  " + join(findings, "\n  ");
}

void throw_findings(const ConfigFindings& findings, const std::string& where) {
  std::vector<std::string> all = findings.problems;
  all.insert(all.end(), findings.unsupported.begin(), findings.unsupported.end());
  if (all.empty()) return;
  const bool bad = !findings.problems.empty();
  throw Error(bad ? ExitCode::kBadInput : ExitCode::kUnsupported,
              cat(where, ":", findings_text(all)));
}

/// Formats a number; whole numbers without an exponent: 500000, not 5e+05.
std::string plain_number_text(double value) {
  const bool whole = std::abs(value) < 1e15 && std::trunc(value) == value;
  return whole ? std::to_string(static_cast<int64_t>(value)) : number_text(value);
}

std::string rope_text(const RopeConfig& rope) {
  std::string text(std::visit([](const auto& scaling) { return scaling.kName; }, rope.scaling));
  text += " theta " + plain_number_text(rope.theta);
  if (rope.partial != 1.0) text += cat(" of ", number_text(rope.partial), " of a head");
  if (rope.is_scaled()) text += " factor " + plain_number_text(rope.factor());
  if (const auto* llama3 = rope.as<Llama3Scaling>())
    text += cat(" low ", plain_number_text(llama3->low_frequency_factor), " high ",
                plain_number_text(llama3->high_frequency_factor));
  if (const auto* yarn = rope.as<YarnScaling>())
    text += cat(" fast ", plain_number_text(yarn->beta_fast), " slow ",
                plain_number_text(yarn->beta_slow), yarn->truncate ? "" : " not truncated");
  if (rope.original_positions() > 0) text += cat(" original ", rope.original_positions());
  if (rope.attention_factor() != 1.0)
    text += " attention " + fixed_text(rope.attention_factor(), 6);
  return text;
}

/// Describes the rotation of most layers, and the layers that differ from it; "none" if no layer
/// rotates.
std::string rotation_text(const ModelConfig& config) {
  if (config.rotary_size() == 0) return "none";
  std::string text = rope_text(config.rope);
  if (config.rotates_pairs) text += ", of neighbors";
  if (config.window_rope) text += cat(", with a window ", rope_text(*config.window_rope));
  std::vector<int64_t> unrotated;
  for (int64_t i = 0; i < config.layers; ++i)
    if (!config.layer_rotates(i)) unrotated.push_back(i);
  if (!unrotated.empty()) text += cat(", none on layers ", join_numbers(unrotated, ","));
  return text;
}

/// Formats the windows of layers: "full", "4096", or one entry for each run of equal layers: "full
/// x28, 4096 x4".
std::string windows_text(const std::vector<int64_t>& windows) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < windows.size();) {
    size_t end = i;
    while (end < windows.size() && windows[end] == windows[i]) ++end;
    std::string name = windows[i] == 0 ? "full" : std::to_string(windows[i]);
    if (i == 0 && end == windows.size()) return name;
    runs.push_back(cat(name, " x", end - i));
    i = end;
  }
  return join(runs, ", ");
}

/// Returns the norm's name in config_text; nullptr for none.
const char* name_of(QkNorm norm) {
  switch (norm) {
    case QkNorm::kNone:
      return nullptr;
    case QkNorm::kEachHead:
      return "qk_norm";
    case QkNorm::kAllHeads:
      return "whole_qk_norm";
    case QkNorm::kLayerNormByHead:
      return "own_head_norms";
  }
  bug("unknown norm of queries and keys");
}

/// Returns the name of the model's layer norms in config_text.
const char* layer_norm_name(const ModelConfig& config) {
  if (!config.norm_weight) return "layer_norm_without_weight";
  return config.norm_bias ? "layer_norm" : "layer_norm_without_bias";
}

std::string features_text(const ModelConfig& config) {
  std::vector<std::string> names;
  if (config.tied) names.emplace_back("tied");
  if (config.qkv_bias) names.emplace_back("qkv_bias");
  if (config.attention_out_bias) names.emplace_back("attention_out_bias");
  if (config.mlp_bias) names.emplace_back("mlp_bias");
  if (config.head_bias) names.emplace_back("head_bias");
  if (const char* const name = name_of(config.qk_norm)) names.emplace_back(name);
  if (config.norm == NormKind::kLayer) names.emplace_back(layer_norm_name(config));
  if (config.norm == NormKind::kRmsStoredLessOne) names.emplace_back("norms_less_one");
  if (!config.input_norm) names.emplace_back("no_input_norm");
  if (!config.mlp_norm) names.emplace_back("no_mlp_norm");
  if (config.output_norms) names.emplace_back("output_norms");
  if (config.parallel_residual) names.emplace_back("parallel_residual");
  if (config.learned_positions) names.emplace_back("learned_positions");
  if (!config.gated) names.emplace_back("plain_mlp");
  if (config.activation != Activation::kSilu) names.emplace_back(traits_of(config.activation).name);
  return names.empty() ? "none" : join(names, " ");
}

/// Makes a line of the scales that are not 1; "" if all are.
std::string scales_text(const ModelConfig& config) {
  std::string text;
  const auto add = [&](std::string_view name, double scale) {
    if (scale != 1.0) text += cat(text.empty() ? "\nscales " : ", ", name, " ", number_text(scale));
  };
  add("embedding", config.embedding_scale);
  add("residual", config.residual_scale);
  add("logits", config.logit_scale);
  if (config.attention_scale) add("attention", *config.attention_scale);
  return text;
}

/// Makes a line of the softcaps that the model has; "" if it has none.
std::string softcaps_text(const ModelConfig& config) {
  std::string text;
  const auto add = [&](std::string_view name, double bound) {
    if (bound > 0) text += cat(text.empty() ? "\nsoftcaps " : ", ", name, " ", number_text(bound));
  };
  add("attention", config.attention_softcap);
  add("logits", config.logit_softcap);
  return text;
}

std::string tokens_text(const ModelConfig& config) {
  const auto id_text = [](std::optional<int64_t> id) { return id ? std::to_string(*id) : "none"; };
  return cat("eos ", config.eos_ids.empty() ? "none" : join_numbers(config.eos_ids, ","), " bos ",
             id_text(config.bos_id), " pad ", id_text(config.pad_id));
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, const std::string& where) {
  json root = parse_json(text, where);
  const MultimodalClass* const outer = find_multimodal_class(read_model_type(root, where, ""));
  const std::string prefix = outer ? cat(kTextConfig, ".") : "";
  ConfigFindings findings;
  if (outer) {
    root = decoder_config(root, *outer, findings);
    throw_findings(findings, where);
  }
  const Family& family = check_family(read_model_type(root, where, prefix), where, prefix);
  ConfigReader reader(root, findings, prefix);
  ModelConfig config;
  config.family = family.model_type;
  if (outer) config.multimodal = outer->model_type;
  read_common(reader, config, family);
  config.learned_positions = !family.names.positions.empty();
  config.gated = !family.names.linear_layer(Projection::kGate).empty();
  config.input_norm = !family.names.input_norm.empty();
  config.mlp_norm = !family.names.mlp_norm.empty();
  config.output_norms = !family.names.attention_output_norm.empty();
  config.activation = read_activation(reader, family);
  family.read(reader, config);
  check_common(reader, config, family);
  throw_findings(findings, where);
  return config;
}

std::string config_text(const ModelConfig& config) {
  std::ostringstream out;
  out << "family " << config.family
      << (config.multimodal.empty() ? "" : cat(", in ", config.multimodal)) << "\nvocabulary "
      << config.vocab_rows << "\nhidden " << config.hidden << "\nfeed_forward "
      << config.feed_forward << "\nlayers " << config.layers << "\nheads " << config.query_heads
      << " query, " << config.kv_heads << " key/value, of " << config.head_size << "\npositions "
      << config.max_positions << "\nnorm_epsilon " << number_text(config.norm_epsilon)
      << "\nfeatures " << features_text(config) << scales_text(config) << softcaps_text(config)
      << "\nrope " << rotation_text(config) << "\nwindow " << windows_text(config.windows)
      << "\ndtype " << (config.dtype ? dtype_name(*config.dtype) : "unknown") << "\ntokens "
      << tokens_text(config) << "\n";
  return out.str();
}

}  // namespace ftrun
