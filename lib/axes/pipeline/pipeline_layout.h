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

  bool holds(int32_t layer) const { return first <= layer && layer < end; }
  bool operator==(const LayerRange&) const = default;
};

/// PipelineLayout specifies which layers each stage of a pipeline runs. The model is cut into
/// parts, `chunks` a stage; part k sends its last layer's output to part k+1 and receives the
/// gradient with respect to it.
class PipelineLayout {
 public:
  /// Makes a layout of one stage that runs all layers, regardless of their number.
  PipelineLayout() = default;
  /// Makes stages x chunks parts of at least one layer: part k has layers [first_layer[k],
  /// first_layer[k+1]).
  PipelineLayout(int stages, int chunks, ChunkPlacement placement,
                 std::vector<int32_t> first_layer);

  int stages() const { return stages_; }
  int chunks() const { return chunks_; }
  int parts() const { return stages_ * chunks_; }

  /// Converts between the number of a part and the stage and chunk that run it.
  int part_of(int stage, int chunk) const;
  int stage_of(int part) const;
  int chunk_of(int part) const;
  /// Returns the stage that has the embedding, or the head.
  int first_stage() const { return stage_of(0); }
  int last_stage() const { return stage_of(parts() - 1); }

  /// Returns the layers of a part, where the model has `layers` layers.
  LayerRange layers(int part, int32_t layers) const;
  /// Returns the part that runs a layer.
  int part_with(int32_t layer) const;
  bool holds(int stage, int32_t layer) const { return stage_of(part_with(layer)) == stage; }

 private:
  int stages_ = 1;
  int chunks_ = 1;
  ChunkPlacement placement_ = ChunkPlacement::kLoop;
  std::vector<int32_t> first_layer_;
};

/// Collects the stages of a pipeline that have layers that read a unit: these stages hold it.
std::set<int> stages_of(const Unit& unit, const PipelineLayout& pipeline);

}  // namespace ftrun
