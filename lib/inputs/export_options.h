#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/hf_export.h"
#include "config/config.h"
#include "config/peft_config.h"
#include "model/config.h"
#include "model/description.h"

namespace ftrun {

bool exports_adapter(const Config& config);

std::string export_folder(const Config& config);

/// Returns the dtype of exported weights; `own` if the config leaves it open.
DType exported_dtype(ExportDtype wanted, DType own);

/// Returns the dtype of exported weights; if the config leaves it open, that of the model's own
/// files, or fp32 if its config.json does not give it.
DType exported_dtype(ExportDtype wanted, const ModelConfig& model);

/// Describes, for PEFT's file, a model that the config or the command calls `base`: its family, its
/// multimodal class ("" for none), and whether it is tied.
PeftModel peft_model(const std::string& base, const std::string& family,
                     const std::string& multimodal, bool tied);

/// Makes the options export only the adapter, in PEFT's layout: in fp32 unless `wanted` is another
/// dtype.
void export_as_adapter(ExportOptions& options, const Config& config, const PeftModel& model,
                       ExportDtype wanted);

/// Reads from an adapter's file how the base that it was trained on was quantized; nothing if the
/// file does not say, as PEFT's own files do not. Error(kBadInput) if it cannot be read.
std::optional<QuantizationConfig> base_quantization(const AdapterFolder& adapter);

/// Makes an export of a multimodal model keep the tensors of its other parts from the source
/// folder. Error(kBadInput) if they cannot be read.
void keep_other_parts(ExportOptions& options, const ModelConfig& model);

/// Makes the options of the export at a run's end.
ExportOptions export_options(const Config& config, const ModelConfig& model);

/// Lists the tensors that an export of `model`, as a run trains it, holds: those of an adapter, or
/// the model's own without what an adapter adds.
std::vector<ExportTensor> export_tensors(const ExportOptions& options,
                                         const ModelDescription& model);

}  // namespace ftrun
