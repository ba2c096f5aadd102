#pragma once

#include <cstdint>

#include "model/config_reader.h"
#include "model/model_config.h"

namespace ftrun {

struct Family;

/// Reads rope_parameters (transformers 5), or rope_theta and rope_scaling (transformers 4);
/// absent values are the family's defaults. `reader` reads the whole config.json; `known` holds the
/// values read before: heads, their size and max_position_embeddings.
RopeConfig read_rope(ConfigReader& reader, const ModelConfig& known, const Family& family);

/// LayerRopes holds the rotation of layers with full attention and that of layers with a sliding
/// window.
struct LayerRopes {
  RopeConfig full, window;
};

/// Reads both rotations as Gemma 3's class does: an object for each layer type in rope_parameters
/// (transformers 5), or rope_theta and rope_scaling for full attention and rope_local_base_freq for
/// sliding windows (transformers 4).
LayerRopes read_layer_ropes(ConfigReader& reader, const ModelConfig& known, const Family& family);

}  // namespace ftrun
