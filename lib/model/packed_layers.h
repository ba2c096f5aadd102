#pragma once

#include "base/packed_format.h"
#include "model/description.h"
#include "model/model_config.h"

namespace ftrun {

/// Returns the format in which a rank stores the packed weight matrices of blocks, for a model with
/// this split. It is `format`, but with double quantization a rank's records hold the scales
/// themselves, if its records are not records of the whole tensor. Neighbors that share a scale in
/// the whole tensor must be neighbors on the rank. Throws one Error(kUsage), which lists every
/// such tensor, for a split that separates them.
PackedFormat fit_packed(const ModelConfig& config, const TensorSplit& split, PackedFormat format);

}  // namespace ftrun
