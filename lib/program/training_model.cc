#include "program/training_model.h"

#include <cstddef>
#include <utility>

#include "axes/tensor/tensor_config.h"
#include "base/error.h"
#include "model/families.h"
#include "model/trained.h"
#include "program/lora_options.h"
#include "program/step_plan.h"

namespace ftrun {
namespace {

RecomputeOptions recompute_options(const RecomputeConfig& config) {
  RecomputeOptions options;
  options.policy.level = config.policy;
  options.every = config.every;
  return options;
}

template <class T>
std::vector<std::pair<std::string, T>> pair_pattern(const char* key,
                                                    const std::vector<std::string>& texts,
                                                    const std::vector<T>& values) {
  if (texts.size() != values.size())
    throw Error(
        ExitCode::kUsage,
        cat("adapter.", key, ": ", texts.size(), " expressions, ", values.size(), " values"),
        cat("write ", key, ": {expression: value}"));
  std::vector<std::pair<std::string, T>> pairs;
  for (size_t i = 0; i < texts.size(); ++i) pairs.emplace_back(texts[i], values[i]);
  return pairs;
}

TrainedTensorOptions trained_options(const Config& config) {
  TrainedTensorOptions options;
  options.freeze = config.train.freeze;
  options.only = config.train.only;
  options.adapter = config.adapter.type == AdapterType::kLora;
  if (!options.adapter) return options;
  options.modules_to_save = config.adapter.modules_to_save;
  options.bias = config.adapter.bias;
  return options;
}

ModelDescription build_model_for(const Config& config, const ModelConfig& model, int rank,
                                 GraphMode mode) {
  const BatchShape shape{config.train_micro_batch_size_per_gpu, config.data.sequence_length};
  const RecomputeOptions recompute =
      mode == GraphMode::kTrain ? recompute_options(config.recompute) : RecomputeOptions{};
  return build_model(model, shape, mode, model_dtypes(config), recompute,
                     tensor_split(config, rank), adapter_of(config, model));
}

}  // namespace

DType dtype_of(ConfigDtype dtype) {
  switch (dtype) {
    case ConfigDtype::kFp16:
      return DType::kF16;
    case ConfigDtype::kBf16:
      return DType::kBF16;
    case ConfigDtype::kFp32:
      return DType::kF32;
    case ConfigDtype::kModel:
      break;
  }
  bug("the dtype \"model\" was not resolved");
}

ModelDtypes model_dtypes(const Config& config) {
  return {dtype_of(training_dtype(config)), dtype_of(gradient_dtype(config)),
          config.device == DeviceKind::kCuda ? KernelDevice::kGpu : KernelDevice::kCpu,
          quantized_format(config.quantization)};
}

QuantizedFormat quantized_format(const QuantizationConfig& quantization) {
  QuantizedFormat format{.type = quantization.type};
  if (format.type != QuantizationType::kNf4) return format;
  format.block = quantization.block;
  format.double_quantized = quantization.double_quantization;
  return format;
}

LoraOptions lora_options(const AdapterConfig& config) {
  LoraOptions options;
  options.r = config.r;
  options.alpha = config.lora_alpha;
  options.dropout = config.lora_dropout;
  options.rank_stabilized = config.use_rslora;
  options.magnitudes = config.use_dora;
  options.target_modules = config.target_modules;
  options.target_pattern = config.target_pattern;
  options.exclude_modules = config.exclude_modules;
  options.exclude_pattern = config.exclude_pattern;
  options.saved_modules = config.modules_to_save;
  options.layers = config.layers_to_transform;
  options.rank_pattern =
      pair_pattern("rank_pattern", config.rank_pattern, config.rank_pattern_ranks);
  options.alpha_pattern =
      pair_pattern("alpha_pattern", config.alpha_pattern, config.alpha_pattern_alphas);
  options.init = config.init_lora_weights;
  return options;
}

Adapter adapter_of(const Config& config, const ModelConfig& model) {
  return config.adapter.type == AdapterType::kLora
             ? make_adapter(model, lora_options(config.adapter))
             : Adapter{};
}

ModelDescription build_training_model(const Config& config, const ModelConfig& model, int rank) {
  ModelDescription trained = choose_trained_tensors(
      build_model_for(config, model, rank, GraphMode::kTrain), trained_options(config));
  const bool leaves_row_out =
      config.model.padding_row_gradient == PaddingRowGradient::kTransformers && model.padding_row;
  return leaves_row_out ? without_row_gradient(std::move(trained), *model.padding_row) : trained;
}

ModelDescription build_evaluation_model(const Config& config, const ModelConfig& model, int rank) {
  return build_model_for(config, model, rank, GraphMode::kEvaluate);
}

}  // namespace ftrun
