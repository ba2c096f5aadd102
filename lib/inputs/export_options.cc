#include "inputs/export_options.h"

#include <cstddef>
#include <map>
#include <utility>

#include "base/error.h"
#include "checkpoint/model_folder.h"
#include "config/model_name.h"
#include "model/adapter_tensors.h"
#include "model/multimodal.h"
#include "report/run_folder.h"

namespace ftrun {
namespace {

/// Lists the tensors of the exported files, in the order of the first model tensor that each holds.
/// `part` returns the file tensors that hold a model tensor, each with only this part; file tensors
/// of the same name are merged.
template <class Tensors, class Part>
std::vector<ExportTensor> file_tensors(const Tensors& tensors, Part part) {
  std::vector<ExportTensor> files;
  std::map<std::string, size_t> at;
  for (const auto& tensor : tensors)
    for (ExportTensor& made : part(tensor)) {
      const auto [known, is_new] = at.try_emplace(made.name, files.size());
      if (is_new)
        files.push_back(std::move(made));
      else
        files[known->second].parts.push_back(std::move(made.parts.front()));
    }
  return files;
}

/// Lists the file tensors that hold a tensor of the model: one, or several of equal size.
std::vector<ExportTensor> stored_tensors(const TensorInfo& tensor) {
  const StoredLocation& location = tensor.stored;
  std::vector<ExportTensor> files;
  for (const std::string& name : tensor.file_names())
    files.push_back({name, tensor.file_shape(), {{tensor.name, tensor.shape, location}}});
  if (location.pieces == 0) return files;
  const int64_t elements = element_count(location.shape);
  for (size_t i = 0; i < files.size(); ++i) {
    ModelTensorInFile& part = files[i].parts.front();
    part.begin = static_cast<int64_t>(i) * elements;
    part.end = part.begin + elements;
  }
  return files;
}

/// Returns the name of a model tensor in exported files. In a multimodal model it follows the
/// naming (in memory or in files) of the tensors of the other parts that the export keeps.
std::string name_in_files(const std::string& name, const ExportOptions& options,
                          const ModelDescription& model) {
  if (model.multimodal.empty()) return name;
  if (!options.kept.empty() && uses_in_memory_names(options.kept.front().name))
    return name_in_multimodal_model(name, tensor_names(model.family).root);
  return name_in_multimodal_files(name);
}

std::vector<ExportTensor> model_tensors(const ExportOptions& options,
                                        const ModelDescription& model) {
  return file_tensors(model.tensors, [&](const TensorInfo& tensor) {
    if (is_lora_name(tensor.name)) return std::vector<ExportTensor>{};
    std::vector<ExportTensor> stored = stored_tensors(tensor);
    for (ExportTensor& file : stored) file.name = name_in_files(file.name, options, model);
    return stored;
  });
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

PeftBaseModel peft_model(const std::string& base, const std::string& family,
                         const std::string& multimodal, bool tied) {
  const TensorNames& names = tensor_names(family);
  return {.name = base_model_name(base),
          .linear = adaptable_names(names),
          .adapted = adapted_by_default(names),
          .tied = tied,
          .embedding = std::string(last_part(names.embedding)),
          .head = std::string(last_part(names.head)),
          .transposed = names.transposed,
          .non_decoder_pattern = std::string(multimodal.empty() ? "" : kNonDecoderPattern)};
}

void export_as_adapter(ExportOptions& options, const Config& config, const PeftBaseModel& model,
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
    export_as_adapter(
        options, config,
        peft_model(portable_name(config.model), model.family, model.multimodal, model.tied),
        wanted);
    return options;
  }
  options.dtype = exported_dtype(wanted, model);
  keep_non_decoder_parts(options, model);
  return options;
}

void keep_non_decoder_parts(ExportOptions& options, const ModelConfig& model) {
  if (model.multimodal.empty()) return;
  options.decoder_key = kTextConfig;
  const ModelFolder source(options.source_folder);
  for (const std::string& name : source.names())
    if (is_outside_decoder(name))
      options.kept.push_back({name, source.at(name).dtype, source.at(name).shape});
  if (options.kept.empty())
    throw Error(ExitCode::kBadInput,
                cat(options.source_folder, ": its config.json belongs to a ", model.multimodal,
                    " model, but its weights are only those of the decoder"),
                cat("give the folder of the whole model; to train the decoder alone, make ",
                    kTextConfig, " its config.json"));
}

std::vector<ExportTensor> export_tensors(const ExportOptions& options,
                                         const ModelDescription& model) {
  if (options.format != ExportFormat::kAdapter) return model_tensors(options, model);
  return file_tensors(adapter_tensors(model), [](const AdapterTensor& tensor) {
    return std::vector<ExportTensor>{
        {tensor.stored, tensor.stored_shape, {{tensor.tensor, tensor.shape, tensor.location}}}};
  });
}

}  // namespace ftrun
