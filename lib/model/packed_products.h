#pragma once

#include "base/packed_format.h"
#include "model/config.h"
#include "model/description.h"

namespace ftrun {

/// Finds how a rank's records of the blocks' product weights look when they are packed as `format`,
/// for a model with this split: neighbours with one scale in the whole tensor must be neighbours on
/// the rank. Refuses a split that parts them with one Error(kUsage) that lists every such tensor.
PackedFormat fit_packed(const ModelConfig& config, const TensorSplit& split, PackedFormat format);

}  // namespace ftrun
