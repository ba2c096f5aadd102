#pragma once

#include "config/config.h"
#include "model/config.h"
#include "model/description.h"

namespace ftrun {

/// Converts a dtype of a resolved config.
DType dtype_of(ConfigDtype dtype);
/// Element types of a run's graphs.
ModelDtypes model_dtypes(const Config& config);
/// The format in which frozen weights of products are packed.
PackedFormat packed_format(const QuantizationConfig& quantization);
/// Computes what a rank has of each layer.
TensorSplit tensor_split(const Config& config, int rank);
/// The adapter that a resolved config asks for; none without one. Errors of make_adapter.
Adapter adapter_of(const Config& config, const ModelConfig& model);

/// The model that a rank trains: its graphs for one micro-batch, with adapters and with what is
/// frozen. Errors of build_model, make_adapter and choose_trained.
ModelDescription training_model(const Config& config, const ModelConfig& model, int rank);
/// Builds the same model for the loss alone.
ModelDescription evaluation_model(const Config& config, const ModelConfig& model, int rank);

}  // namespace ftrun
