#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/config_reader.h"

namespace ftrun {

/// Reads rope_parameters (transformers 5), or rope_theta and rope_scaling (transformers 4).
/// `reader` reads the whole config.json; `max_positions` is its max_position_embeddings.
RopeConfig read_rope(ConfigReader& reader, int64_t max_positions);

/// Returns rotary_size/2 angles per position in radians per token. Each is an fp32 number, computed
/// with the roundings of transformers (modeling_rope_utils), so that angles agree with it at any
/// position.
std::vector<double> inverse_frequencies(const RopeConfig& rope, int64_t rotary_size);

}  // namespace ftrun
