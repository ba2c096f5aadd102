#pragma once

#include "base/packed_format.h"
#include "model/description.h"
#include "model/model_config.h"

namespace ftrun {

/// Returns the format of a rank's records of the blocks' weight matrices that are packed as
/// `format`, for a model with this split. Neighbours that share a scale in the whole tensor must be
/// neighbours on the rank. Throws one Error(kUsage), which lists every such tensor, for a split
/// that separates them.
PackedFormat fit_packed(const ModelConfig& config, const TensorSplit& split, PackedFormat format);

}  // namespace ftrun
