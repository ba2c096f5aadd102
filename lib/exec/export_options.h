#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hub_cache.h"
#include "checkpoint/adapter_folder.h"
#include "checkpoint/hf_export.h"
#include "config/config.h"
#include "config/peft_config.h"
#include "model/adapter_tensors.h"
#include "model/config.h"
#include "model/description.h"
#include "report/run_folder.h"

namespace ftrun {

inline bool exports_adapter(const Config& config) { return config.adapter.type == AdapterType::kLora; }

inline std::string export_folder(const Config& config) {
  return RunPaths(config.output_dir).exported() + (exports_adapter(config) ? "/adapter" : "/model");
}

/// Of exported weights; `own` where the config leaves it open.
inline DType exported_dtype(ExportDtype wanted, DType own) {
  if (wanted == ExportDtype::kAuto) return own;
  return wanted == ExportDtype::kFp32 ? DType::kF32 : wanted == ExportDtype::kFp16 ? DType::kF16 : DType::kBF16;
}

/// As the model's own files; fp32 where its config.json does not say what these hold.
inline DType exported_dtype(ExportDtype wanted, const ModelConfig& model) { return exported_dtype(wanted, model.dtype.value_or(DType::kF32)); }

/// Of the adapter alone, in PEFT's layout: fp32 unless another dtype is asked for. `base` is what the config or the
/// command calls the model.
inline void export_as_adapter(ExportOptions& options, const Config& config, const std::string& base, bool tied,
                              ExportDtype wanted) {
  options.format = ExportFormat::kAdapter;
  options.config_json = peft_config(config.adapter, base_model_name(base), tied);
  options.metadata[kBaseQuantization] = quantization_text(config.quantization);
  options.dtype = exported_dtype(wanted, DType::kF32);
}

/// How the base was quantized that an adapter was trained on, which its file says; nothing where it says nothing, as no file of PEFT's
/// own does. Error(kBadInput).
inline std::optional<QuantizationConfig> base_quantization(const AdapterFolder& adapter) {
  const auto text = adapter.metadata().find(kBaseQuantization);
  if (text == adapter.metadata().end()) return std::nullopt;
  return quantization_of_text(text->second, cat(adapter.path(), "/adapter_model.safetensors, ", kBaseQuantization));
}

/// What a run exports at its end, and where. Inline: commands use it without the engine.
inline ExportOptions export_options(const Config& config, const ModelConfig& model) {
  ExportOptions options;
  options.folder = export_folder(config);
  options.source_folder = find_model_folder(config.model.path).folder;
  const ExportDtype wanted = config.model_export.dtype;
  if (exports_adapter(config)) {
    export_as_adapter(options, config, config.model.path, model.tied, wanted);
    return options;
  }
  options.dtype = exported_dtype(wanted, model);
  return options;
}

/// Of `model` as a run trains it.
inline std::vector<ExportTensor> export_tensors(const ExportOptions& options, const ModelDescription& model) {
  std::vector<ExportTensor> tensors;
  if (options.format == ExportFormat::kAdapter) {
    for (const AdapterTensor& tensor : adapter_tensors(model)) tensors.push_back({tensor.tensor, tensor.shape, tensor.stored});
    return tensors;
  }
  for (const TensorInfo& tensor : model.tensors) tensors.push_back({tensor.name, tensor.shape});
  return tensors;
}

}  // namespace ftrun
