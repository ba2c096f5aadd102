#pragma once

#include "config/config.h"
#include "model/description.h"
#include "model/model_config.h"

namespace ftrun {

/// Converts a dtype of a resolved config to a DType.
DType dtype_of(ConfigDtype dtype);
/// Returns the element types of a run's graphs.
ModelDtypes model_dtypes(const Config& config);
/// Returns the format in which frozen weight matrices are quantized.
QuantizedFormat quantized_format(const QuantizationConfig& quantization);
/// Makes the adapter that a resolved config requests; an empty Adapter if it requests none. Throws
/// the errors of make_adapter().
Adapter adapter_of(const Config& config, const ModelConfig& model);

/// Builds the model that a rank trains: its graphs for one micro-batch, with adapters and frozen
/// tensors. Throws the errors of build_model(), make_adapter() and choose_trained_tensors().
ModelDescription build_training_model(const Config& config, const ModelConfig& model, int rank);
/// Builds the same model with the loss as its only result.
ModelDescription build_evaluation_model(const Config& config, const ModelConfig& model, int rank);

}  // namespace ftrun
