#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/hf_export.h"
#include "config/config.h"
#include "model/config.h"
#include "model/description.h"
#include "report/run_folder.h"

namespace ftrun {

inline std::string export_folder(const Config& config) {
  return RunPaths(config.output_dir).exported() + "/model";
}

/// What a run exports at its end, and where. Inline: commands use it without the engine.
inline ExportOptions export_options(const Config& config, const ModelConfig& model) {
  ExportOptions options;
  options.folder = export_folder(config);
  options.source_folder = config.model.path;
  const ExportDtype wanted = config.model_export.dtype;
  const bool models_own = wanted == ExportDtype::kAuto && model.dtype == DType::kBF16;
  options.dtype = wanted == ExportDtype::kBf16 || models_own ? DType::kBF16 : DType::kF32;
  return options;
}

inline std::vector<ExportTensor> export_tensors(const ModelDescription& model) {
  std::vector<ExportTensor> tensors;
  for (const TensorInfo& tensor : model.tensors) tensors.push_back({tensor.name, tensor.shape});
  return tensors;
}

}  // namespace ftrun
