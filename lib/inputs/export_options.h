#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/hf_export.h"
#include "config/config.h"
#include "config/peft_config.h"
#include "model/description.h"
#include "model/model_config.h"

namespace ftrun {

bool exports_adapter(const Config& config);

std::string export_folder(const Config& config);

/// Returns the dtype of exported weights; `default_dtype` if the config does not choose one.
DType exported_dtype(ExportDtype requested, DType default_dtype);

/// Returns the dtype of exported weights. If the config does not choose one, it is the dtype of the
/// model's own files, or fp32 if its config.json gives none.
DType exported_dtype(ExportDtype requested, const ModelConfig& model);

/// Describes, for PEFT's file, a model that the config or the command calls `base`: its family, its
/// multimodal class ("" for none), and whether it is tied.
PeftBaseModel peft_model(const std::string& base, const std::string& family,
                         const std::string& multimodal, bool tied);

/// Makes the options export only the adapter, in PEFT's layout: in fp32 unless `requested` is
/// another dtype.
void set_adapter_export(ExportOptions& options, const Config& config, const PeftBaseModel& model,
                        ExportDtype requested);

/// Reads from an adapter's file how the base model was quantized while the adapter was trained.
/// Returns nothing if the file does not say it, as PEFT's own files do not. Throws Error(kBadInput)
/// if the file cannot be read.
std::optional<QuantizationConfig> read_base_quantization(const AdapterFolder& adapter);

/// Makes an export of a multimodal model keep the tensors of its other parts from the source
/// folder. Throws Error(kBadInput) if these cannot be read.
void keep_non_decoder_parts(ExportOptions& options, const ModelConfig& model);

/// Returns the options of the export at the end of a run.
ExportOptions export_options(const Config& config, const ModelConfig& model);

/// Lists the tensors in an export of `model`, as a run trains it: the tensors of the adapter, or
/// the model's tensors without those of the adapter.
std::vector<ExportTensor> export_tensors(const ExportOptions& options,
                                         const ModelDescription& model);

}  // namespace ftrun
