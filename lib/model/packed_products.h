#pragma once

#include "base/packed_format.h"
#include "model/config.h"
#include "model/description.h"

namespace ftrun {

/// Finds how a rank's records of the blocks' product weights look when they are packed as `format`,
/// for a model that is split so: neighbours with one scale in the whole tensor must be neighbours
/// on the rank. Error(kUsage) with every tensor of which they are not.
PackedFormat fit_packed(const ModelConfig& config, const TensorSplit& split, PackedFormat format);

}  // namespace ftrun
