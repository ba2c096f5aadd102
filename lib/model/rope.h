#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/config_reader.h"

namespace ftrun {

struct Family;

/// Reads rope_parameters (transformers 5), or rope_theta and rope_scaling (transformers 4); what
/// they leave out is the family's own. `reader` reads the whole config.json; `max_positions` is its
/// max_position_embeddings.
RopeConfig read_rope(ConfigReader& reader, int64_t max_positions, const Family& family);

/// LayerRopes are the rotations of layers with full attention and of those with a sliding window.
struct LayerRopes {
  RopeConfig full, window;
};

/// Reads them as Gemma 3's class does: an object for each layer type in rope_parameters
/// (transformers 5), or rope_theta and rope_scaling of the ones and rope_local_base_freq of the
/// others (transformers 4).
LayerRopes read_layer_ropes(ConfigReader& reader, int64_t max_positions);

/// Returns rotary_size/2 angles per position in radians per token. Each is an fp32 number, computed
/// with the roundings of transformers (modeling_rope_utils), so that angles agree with it at any
/// position.
std::vector<double> inverse_frequencies(const RopeConfig& rope, int64_t rotary_size);

}  // namespace ftrun
