#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/layer_graph.h"
#include "model/adapter.h"

namespace ftrun {

/// StoredShapes lists the names and shapes of a folder's tensors.
using StoredShapes = std::vector<std::pair<std::string, Dims>>;

/// NonDecoderModule is a module of a multimodal model outside its decoder.
struct NonDecoderModule {
  /// The name in memory: "model.vision_tower.patch_conv".
  std::string name;
  /// The part as its tensors name it: "vision_tower".
  std::string part;
  /// Says whether the module is a matrix, and not an embedding.
  bool is_linear = false;
};

/// Lists the modules of other parts whose weights or biases a folder stores, in the order of their
/// names.
std::vector<NonDecoderModule> list_non_decoder_modules(const StoredShapes& stored);

/// NonDecoderTarget says that an entry or expression of target_modules also names modules of a part
/// of a multimodal model that does not train.
struct NonDecoderTarget {
  /// The entry or expression, as written.
  std::string entry;
  /// The part as its tensors name it: "vision_tower".
  std::string part;
  /// The number of the part's modules that the entry names.
  int64_t module_count = 0;
  /// The first of these modules, by its name in memory: "model.vision_tower.patch_conv".
  std::string first_module;
  bool operator==(const NonDecoderTarget&) const = default;
};

/// Finds the modules of other parts than the decoder that PEFT (check_target_module_exists() of
/// PEFT 0.21.2) would give an adapter because target_modules names them. `stored` holds the names
/// and shapes of a folder's tensors; those of the decoder are ignored. "all-linear" stands for
/// matrices that are not embeddings, which are recognized by their names. The family's own modules,
/// which a config without target_modules chooses, are only in the decoder. make_adapter() must have
/// accepted the options.
std::vector<NonDecoderTarget> find_non_decoder_targets(const LoraOptions& options,
                                                       const StoredShapes& stored);

}  // namespace ftrun
