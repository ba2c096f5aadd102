#pragma once

#include "config/config.h"
#include "model/config.h"
#include "model/description.h"

namespace ftrun {

/// Of what a resolved config says.
DType dtype_of(ConfigDtype dtype);
/// Element types of a run's graphs.
ModelDtypes model_dtypes(const Config& config);
/// How frozen weights of products are packed.
PackedFormat packed_format(const QuantizationConfig& quantization);
/// What a rank has of each layer.
TensorSplit tensor_split(const Config& config, int rank);
/// The adapter that a resolved config asks for; none without one. Errors of make_adapter.
Adapter adapter_of(const Config& config, const ModelConfig& model);

/// The model that a rank trains: its graphs for one micro-batch, with adapters and with what is frozen. Errors of
/// build_model, make_adapter and choose_trained.
ModelDescription training_model(const Config& config, const ModelConfig& model, int rank);
/// The same model for the loss alone.
ModelDescription evaluation_model(const Config& config, const ModelConfig& model, int rank);

}  // namespace ftrun
