#include "config/peft_config.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hub_cache.h"
#include "base/module_names.h"
#include "base/pattern.h"
#include "base/text.h"
#include "config/load.h"
#include "config/resolve.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json list_or_null(const std::vector<T>& values) {
  return values.empty() ? Json(nullptr) : Json(values);
}

/// Returns modules as an expression or as names. all-linear is written as the names of its modules,
/// because servers can read these.
Json modules_json(const std::vector<std::string>& names, const std::string& expression,
                  const PeftBaseModel& model) {
  if (!expression.empty()) return expression;
  return list_or_null(names.size() == 1 && names[0] == kAllLinear ? model.linear_modules : names);
}

/// Returns the expression that matches modules whose paths are these names or end with them, as
/// PEFT reads a list.
std::string pattern_of_names(const std::vector<std::string>& names) {
  std::vector<std::string> patterns;
  for (const std::string& name : names) patterns.push_back(pattern_of_path(name));
  return cat("(?:.*\\.)?(?:", join(patterns, "|"), ")");
}

/// Returns exclude_modules, including the parts of the model that do not train.
Json exclude_modules_json(const AdapterConfig& adapter, const PeftBaseModel& model) {
  if (model.non_decoder_pattern.empty())
    return modules_json(adapter.exclude_modules, adapter.exclude_pattern, model);
  return exclusion_with_non_decoder(adapter, model);
}

/// Returns a map from expressions to values; the order is kept, because the first match counts.
template <class T>
Json pattern_json(const std::vector<std::string>& expressions, const std::vector<T>& values) {
  Json map = Json::object();
  for (size_t i = 0; i < expressions.size(); ++i) map[expressions[i]] = values.at(i);
  return map;
}

std::vector<std::string> add_tied_module(std::vector<std::string> names,
                                         const PeftBaseModel& model) {
  const auto has = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (!model.tied) return names;
  if (has(model.embedding) && !has(model.head)) names.push_back(model.head);
  if (has(model.head) && !has(model.embedding)) names.push_back(model.embedding);
  return names;
}

Json init_lora_weights_json(LoraInit init) {
  if (init == LoraInit::kGaussian || init == LoraInit::kOrthogonal)
    return std::string(name_of(init));
  return init == LoraInit::kUniform;
}

}  // namespace

BaseModelName base_model_name(const std::string& path) {
  const std::optional<HubName> name = parse_hub_name(path);
  std::error_code error;
  if (!name || !name->gives_revision || std::filesystem::exists(path, error)) return {path, ""};
  return {name->repository, name->revision};
}

std::string exclusion_with_non_decoder(const AdapterConfig& adapter, const PeftBaseModel& model) {
  const Json exclusion = modules_json(adapter.exclude_modules, adapter.exclude_pattern, model);
  if (exclusion.is_null()) return model.non_decoder_pattern;
  const std::string expression = exclusion.is_string()
                                     ? exclusion.get<std::string>()
                                     : pattern_of_names(exclusion.get<std::vector<std::string>>());
  // The expression has these parts already if training continued from an adapter's file.
  if (expression.find(model.non_decoder_pattern) != std::string::npos) return expression;
  return cat("(?:", expression, ")|(?:", model.non_decoder_pattern, ")");
}

std::string peft_config_text(const AdapterConfig& adapter, const PeftBaseModel& model) {
  const BaseModelName& base = model.name;
  Json json;
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = base.name;
  json["revision"] = base.revision.empty() ? Json(nullptr) : Json(base.revision);
  json["inference_mode"] = true;
  json["r"] = adapter.r;
  json["lora_alpha"] = adapter.lora_alpha;
  // PEFT writes whole numbers without a decimal point, and some readers accept nothing else.
  if (adapter.lora_alpha == static_cast<double>(static_cast<int64_t>(adapter.lora_alpha)))
    json["lora_alpha"] = static_cast<int64_t>(adapter.lora_alpha);
  json["lora_dropout"] = adapter.lora_dropout;
  json["target_modules"] = modules_json(adapter.target_modules, adapter.target_pattern, model);
  if (json["target_modules"].is_null()) json["target_modules"] = model.default_targets;
  json["exclude_modules"] = exclude_modules_json(adapter, model);
  json["layers_to_transform"] = list_or_null(adapter.layers_to_transform);
  json["layers_pattern"] = nullptr;
  json["rank_pattern"] = pattern_json(adapter.rank_pattern, adapter.rank_pattern_ranks);
  json["alpha_pattern"] = pattern_json(adapter.alpha_pattern, adapter.alpha_pattern_alphas);
  json["modules_to_save"] = list_or_null(add_tied_module(adapter.modules_to_save, model));
  json["bias"] = std::string(name_of(adapter.bias));
  json["use_rslora"] = adapter.use_rslora;
  json["use_dora"] = adapter.use_dora;
  json["fan_in_fan_out"] = model.transposed;
  json["init_lora_weights"] = init_lora_weights_json(adapter.init_lora_weights);
  return json.dump(2) + "\n";
}

std::string quantization_text(const QuantizationConfig& quantization) {
  if (quantization.type == QuantizationType::kNone) return std::string(name_of(quantization.type));
  Json json{{"type", std::string(name_of(quantization.type))}};
  if (quantization.type == QuantizationType::kNf4)
    json.update({{"double", quantization.double_quantization}, {"block", quantization.block}});
  return json.dump();
}

QuantizationConfig parse_quantization(const std::string& text, const std::string& where) {
  if (text.empty() || text == name_of(QuantizationType::kNone)) return {};
  const auto refuse = [&](const std::string& why) {
    throw Error(ExitCode::kBadInput, cat(where, ": ", why),
                "export the adapter again from its run");
  };
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("type"))
    refuse("the quantization of the base must be a JSON object with the key type");
  for (const auto& [key, value] : json.items())
    if (key != "type" && key != "double" && key != "block")
      refuse(cat("unknown key \"", key, "\" in the quantization of the base"));
  const LoadResult loaded = load_config_text(
      where, Json{{"quantization", json}, {"train_micro_batch_size_per_gpu", 1}}.dump());
  const ResolvedConfig resolution = resolve(loaded.written, {});
  for (const std::vector<Problem>* problems : {&loaded.problems, &resolution.problems})
    for (const Problem& problem : *problems)
      if (problem.severity == Severity::kError) refuse(problem.message);
  return resolution.config.quantization;
}

}  // namespace ftrun
