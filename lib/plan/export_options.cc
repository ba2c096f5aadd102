#include "plan/export_options.h"

#include <cstddef>
#include <map>
#include <utility>

#include "checkpoint/model_folder.h"
#include "config/model_name.h"
#include "model/adapter_tensors.h"
#include "model/multimodal.h"
#include "report/run_folder.h"

namespace ftrun {
namespace {

/// Groups model tensors by the tensor of the files that holds them, in order of the first one that
/// each holds. `part` makes of a model tensor the files' tensor with this part alone, or nothing to
/// leave it out.
template <class Tensors, class Part>
std::vector<ExportTensor> file_tensors(const Tensors& tensors, Part part) {
  std::vector<ExportTensor> files;
  std::map<std::string, size_t> at;
  for (const auto& tensor : tensors) {
    std::optional<ExportTensor> made = part(tensor);
    if (!made) continue;
    const auto [known, is_new] = at.try_emplace(made->name, files.size());
    if (is_new)
      files.push_back(std::move(*made));
    else
      files[known->second].parts.push_back(std::move(made->parts.front()));
  }
  return files;
}

}  // namespace

bool exports_adapter(const Config& config) {
  return config.adapter.type == AdapterType::kLora;
}

std::string export_folder(const Config& config) {
  return RunPaths(config.output_dir).exported() + (exports_adapter(config) ? "/adapter" : "/model");
}

DType exported_dtype(ExportDtype wanted, DType own) {
  if (wanted == ExportDtype::kAuto) return own;
  return wanted == ExportDtype::kFp32   ? DType::kF32
         : wanted == ExportDtype::kFp16 ? DType::kF16
                                        : DType::kBF16;
}

DType exported_dtype(ExportDtype wanted, const ModelConfig& model) {
  return exported_dtype(wanted, model.dtype.value_or(DType::kF32));
}

PeftModel peft_model(const std::string& base, const std::string& family, bool tied) {
  const TensorNames& names = tensor_names(family);
  return {.name = base_model_name(base),
          .linear = adaptable_names(names),
          .adapted = adapted_by_default(names),
          .tied = tied,
          .embedding = std::string(last_part(names.embedding)),
          .head = std::string(last_part(names.head)),
          .transposed = names.transposed};
}

void export_as_adapter(ExportOptions& options, const Config& config, const PeftModel& model,
                       ExportDtype wanted) {
  options.format = ExportFormat::kAdapter;
  options.kept.clear();
  options.config_json = peft_config(config.adapter, model);
  options.metadata[kBaseQuantization] = quantization_text(config.quantization);
  options.dtype = exported_dtype(wanted, DType::kF32);
}

std::optional<QuantizationConfig> base_quantization(const AdapterFolder& adapter) {
  const auto text = adapter.metadata().find(kBaseQuantization);
  if (text == adapter.metadata().end()) return std::nullopt;
  return quantization_of_text(
      text->second, cat(adapter.path(), "/adapter_model.safetensors, ", kBaseQuantization));
}

ExportOptions export_options(const Config& config, const ModelConfig& model) {
  ExportOptions options;
  options.folder = export_folder(config);
  options.source_folder = folder_of(config.model);
  const ExportDtype wanted = config.model_export.dtype;
  if (exports_adapter(config)) {
    export_as_adapter(options, config,
                      peft_model(lasting_name(config.model), model.family, model.tied), wanted);
    return options;
  }
  options.dtype = exported_dtype(wanted, model);
  keep_other_parts(options, model);
  return options;
}

std::vector<ExportTensor> model_tensors(const ModelDescription& model) {
  return file_tensors(model.tensors, [&](const TensorInfo& tensor) -> std::optional<ExportTensor> {
    if (is_lora_name(tensor.name)) return std::nullopt;
    const std::string& name = tensor.file_name();
    return ExportTensor{model.multimodal.empty() ? name : name_in_multimodal_files(name),
                        tensor.file_shape(),
                        {{tensor.name, tensor.shape, tensor.stored}}};
  });
}

void keep_other_parts(ExportOptions& options, const ModelConfig& model) {
  if (model.multimodal.empty()) return;
  const ModelFolder source(options.source_folder);
  for (const std::string& name : source.names())
    if (is_of_other_part(name))
      options.kept.push_back({name, source.at(name).dtype, source.at(name).shape});
}

std::vector<ExportTensor> export_tensors(const ExportOptions& options,
                                         const ModelDescription& model) {
  if (options.format != ExportFormat::kAdapter) return model_tensors(model);
  return file_tensors(adapter_tensors(model), [](const AdapterTensor& tensor) {
    return std::optional(ExportTensor{
        tensor.stored, tensor.stored_shape, {{tensor.tensor, tensor.shape, tensor.place}}});
  });
}

}  // namespace ftrun
