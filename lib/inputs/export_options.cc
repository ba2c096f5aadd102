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
/// `files_of` returns the file tensors that hold a model tensor, each with only this part; file
/// tensors of the same name are merged.
template <class Tensors, class FilesOf>
std::vector<ExportTensor> merge_file_tensors(const Tensors& tensors, FilesOf files_of) {
  std::vector<ExportTensor> files;
  std::map<std::string, size_t> index_of;
  for (const auto& tensor : tensors)
    for (ExportTensor& file : files_of(tensor)) {
      const auto [known, is_new] = index_of.try_emplace(file.name, files.size());
      if (is_new)
        files.push_back(std::move(file));
      else
        files[known->second].parts.push_back(std::move(file.parts.front()));
    }
  return files;
}

/// Lists the file tensors that hold a tensor of the model: one, or several of equal size.
std::vector<ExportTensor> stored_tensors(const TensorInfo& tensor) {
  const StoredLocation& location = tensor.stored_location;
  std::vector<ExportTensor> files;
  for (const std::string& name : tensor.file_names())
    files.push_back({name, tensor.file_shape(), {{tensor.name, tensor.shape, location}}});
  if (location.tensor_count == 0) return files;
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
  if (!options.kept_tensors.empty() && uses_in_memory_names(options.kept_tensors.front().name))
    return name_in_multimodal_model(name, tensor_names(model.family).root);
  return name_in_multimodal_files(name);
}

std::vector<ExportTensor> model_tensors(const ExportOptions& options,
                                        const ModelDescription& model) {
  return merge_file_tensors(model.tensors, [&](const TensorInfo& tensor) {
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

DType exported_dtype(ExportDtype requested, DType default_dtype) {
  if (requested == ExportDtype::kAuto) return default_dtype;
  return requested == ExportDtype::kFp32   ? DType::kF32
         : requested == ExportDtype::kFp16 ? DType::kF16
                                           : DType::kBF16;
}

DType exported_dtype(ExportDtype requested, const ModelConfig& model) {
  return exported_dtype(requested, model.dtype.value_or(DType::kF32));
}

PeftBaseModel peft_model(const std::string& base, const std::string& family,
                         const std::string& multimodal, bool tied) {
  const TensorNames& names = tensor_names(family);
  return {.name = base_model_name(base),
          .linear_modules = adaptable_module_names(names),
          .default_targets = default_target_modules(names),
          .tied = tied,
          .embedding = std::string(last_path_part(names.embedding)),
          .head = std::string(last_path_part(names.head)),
          .transposed = names.transposed,
          .non_decoder_pattern = std::string(multimodal.empty() ? "" : kNonDecoderPattern)};
}

void set_adapter_export(ExportOptions& options, const Config& config, const PeftBaseModel& model,
                        ExportDtype requested) {
  options.format = ExportFormat::kAdapter;
  options.kept_tensors.clear();
  options.config_json = peft_config_text(config.adapter, model);
  options.metadata[kBaseQuantization] = quantization_text(config.quantization);
  options.dtype = exported_dtype(requested, DType::kF32);
}

std::optional<QuantizationConfig> read_base_quantization(const AdapterFolder& adapter) {
  const auto text = adapter.metadata().find(kBaseQuantization);
  if (text == adapter.metadata().end()) return std::nullopt;
  return parse_quantization(text->second,
                            cat(adapter.path(), "/adapter_model.safetensors, ", kBaseQuantization));
}

ExportOptions export_options(const Config& config, const ModelConfig& model) {
  ExportOptions options;
  options.folder = export_folder(config);
  options.source_folder = folder_of(config.model);
  const ExportDtype requested = config.model_export.dtype;
  if (exports_adapter(config)) {
    set_adapter_export(
        options, config,
        peft_model(portable_name(config.model), model.family, model.multimodal, model.tied),
        requested);
    return options;
  }
  options.dtype = exported_dtype(requested, model);
  keep_non_decoder_parts(options, model);
  return options;
}

void keep_non_decoder_parts(ExportOptions& options, const ModelConfig& model) {
  if (model.multimodal.empty()) return;
  options.decoder_key = kTextConfig;
  const ModelFolder source(options.source_folder);
  for (const std::string& name : source.names())
    if (is_outside_decoder(name))
      options.kept_tensors.push_back({name, source.at(name).dtype, source.at(name).shape});
  if (options.kept_tensors.empty())
    throw Error(ExitCode::kBadInput,
                cat(options.source_folder, ": its config.json belongs to a ", model.multimodal,
                    " model, but its weights are only those of the decoder"),
                cat("give the folder of the whole model; to train the decoder alone, make ",
                    kTextConfig, " its config.json"));
}

std::vector<ExportTensor> export_tensors(const ExportOptions& options,
                                         const ModelDescription& model) {
  if (options.format != ExportFormat::kAdapter) return model_tensors(options, model);
  return merge_file_tensors(adapter_tensors(model), [](const AdapterTensor& tensor) {
    return std::vector<ExportTensor>{{tensor.stored_name,
                                      tensor.stored_shape,
                                      {{tensor.tensor, tensor.shape, tensor.location}}}};
  });
}

}  // namespace ftrun
