#include "inputs/trained_check.h"

#include "axes/model_fit.h"
#include "base/error.h"
#include "base/hub_cache.h"
#include "checkpoint/adapter_folder.h"
#include "config/peft_config.h"
#include "config/unsupported.h"
#include "inputs/config_problem.h"
#include "inputs/export_options.h"
#include "inputs/weights_check.h"
#include "program/training_model.h"

namespace ftrun {
namespace {

/// Returns a notice if the adapter was trained on a base that was quantized in another way.
std::optional<Problem> find_other_base(const Config& config, const AdapterFolder& adapter) {
  const std::optional<QuantizationConfig> trained_on = read_base_quantization(adapter);
  if (!trained_on || *trained_on == config.quantization) return std::nullopt;
  const auto base_text = [](const QuantizationConfig& quantization) {
    return quantization.type == QuantizationType::kNone
               ? "not quantized"
               : cat("quantized as ", quantization_text(quantization));
  };
  return notice_about(
      config.origins, "adapter",
      cat(adapter.path(), ": was trained on a base ", base_text(*trained_on), "; here it is ",
          base_text(config.quantization)),
      "continue with the same quantization; on another base the first losses are higher");
}

}  // namespace

std::optional<Problem> find_division_problem(const Config& config, const ModelConfig& model,
                                             bool config_has_errors) {
  const std::optional<ModelFitProblem> problem =
      find_model_fit_problem(config, model, config_has_errors);
  if (!problem) return std::nullopt;
  return problem_at(position_of_request(config.origins, problem->key), problem->error);
}

std::vector<Problem> check_trainable(const Config& config, const ModelConfig& model) {
  const bool quantizes = config.quantization.type != QuantizationType::kNone;
  if (config.adapter.type == AdapterType::kNone && !quantizes && config.train.freeze.empty() &&
      config.train.only.empty())
    return {};
  const char* key = "adapter";
  try {
    const Adapter adapter = adapter_of(config, model);
    key = quantizes                      ? "quantization"
          : !config.train.freeze.empty() ? "train.freeze"
          : !config.train.only.empty()   ? "train.only"
                                         : "adapter";
    const ModelDescription trained = build_training_model(config, model, 0);
    if (config.adapter.path.empty()) return {};
    const AdapterFolder initial_adapter(find_adapter_folder(config.adapter.path).folder);
    locate_adapter_tensors(trained, initial_adapter);
    if (const std::optional<Problem> notice = find_other_base(config, initial_adapter))
      return {*notice};
  } catch (const Error& error) {
    return {problem_at(position_of_request(config.origins, key), error)};
  }
  return {};
}

}  // namespace ftrun
