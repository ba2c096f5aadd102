#pragma once

#include "base/quantized_format.h"
#include "model/description.h"
#include "model/model_config.h"

namespace ftrun {

/// Returns the format in which a rank stores the quantized weight matrices of blocks, for a model
/// with this split. It is `format`, but with double quantization a rank's records hold the scales
/// themselves, if its records are not records of the whole tensor. Neighbors that share a scale in
/// the whole tensor must be neighbors on the rank. Throws one Error(kUsage), which lists every such
/// tensor, for a split that separates them.
QuantizedFormat fit_quantized_format(const ModelConfig& config, const TensorSplit& split,
                                     QuantizedFormat format);

}  // namespace ftrun
