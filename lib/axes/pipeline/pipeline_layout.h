#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "axes/pipeline/schedule.h"
#include "partition/flat_layout.h"

namespace ftrun {

/// LayerRange is the layers [first, end) of a model.
struct LayerRange {
  int32_t first = 0;
  int32_t end = 0;

  bool contains(int32_t layer) const { return first <= layer && layer < end; }
  bool operator==(const LayerRange&) const = default;
};

/// PipelineLayout specifies which layers each stage of a pipeline runs. The model is cut into
/// consecutive chunks of layers, `chunks` of which a stage has (Megatron's model chunks). A chunk
/// has two numbers: `chunk` among those of its stage, and `model_chunk` among all, in the order of
/// the layers. Model chunk k sends its last layer's output to model chunk k+1 and receives the
/// gradient with respect to it.
class PipelineLayout {
 public:
  /// Makes a layout of one stage that runs all layers, regardless of their number.
  PipelineLayout() = default;
  /// Makes stages x chunks model chunks of at least one layer: chunk k has layers [first_layer[k],
  /// first_layer[k+1]).
  PipelineLayout(int stages, int chunks, ChunkPlacement placement,
                 std::vector<int32_t> first_layer);

  int stages() const { return stages_; }
  int chunks() const { return chunks_; }
  int model_chunks() const { return stages_ * chunks_; }

  /// Converts between the number of a chunk in the model, and its stage with its number there.
  int model_chunk_of(int stage, int chunk) const;
  int stage_of(int model_chunk) const;
  int chunk_of(int model_chunk) const;
  /// Returns the stage that has the embedding, or the head.
  int first_stage() const { return stage_of(0); }
  int last_stage() const { return stage_of(model_chunks() - 1); }

  /// Returns the layers of a model chunk, where the model has `layer_count` layers.
  LayerRange layers_of(int model_chunk, int32_t layer_count) const;
  /// Returns the model chunk that runs a layer.
  int model_chunk_of_layer(int32_t layer) const;
  bool stage_has_layer(int stage, int32_t layer) const {
    return stage_of(model_chunk_of_layer(layer)) == stage;
  }

 private:
  int stages_ = 1;
  int chunks_ = 1;
  ChunkPlacement placement_ = ChunkPlacement::kLoop;
  std::vector<int32_t> first_layer_;
};

/// Collects the stages of a pipeline that have layers that read a unit: these stages have it.
std::set<int> stages_of(const Unit& unit, const PipelineLayout& pipeline);

}  // namespace ftrun
