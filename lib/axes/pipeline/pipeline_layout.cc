#include "axes/pipeline/pipeline_layout.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ftrun {

PipelineLayout::PipelineLayout(int stages, int chunks, ChunkPlacement placement,
                               std::vector<int32_t> first_layer)
    : stages_(stages),
      chunks_(chunks),
      placement_(placement),
      first_layer_(std::move(first_layer)) {
  require(static_cast<int>(first_layer_.size()) == model_chunks() + 1 && first_layer_.front() == 0,
          "a pipeline has a first layer for each chunk and the number of layers");
  require(std::adjacent_find(first_layer_.begin(), first_layer_.end(), std::greater_equal<>()) ==
              first_layer_.end(),
          "each chunk of a pipeline has layers");
  require(placement != ChunkPlacement::kV || chunks == 2, "a V has two chunks per stage");
}

int PipelineLayout::model_chunk_of(int stage, int chunk) const {
  return ftrun::model_chunk_of(placement_, stages_, stage, chunk);
}

int PipelineLayout::stage_of(int model_chunk) const {
  return placement_ == ChunkPlacement::kV && model_chunk >= stages_
             ? model_chunks() - 1 - model_chunk
             : model_chunk % stages_;
}

int PipelineLayout::chunk_of(int model_chunk) const {
  return model_chunk / stages_;
}

LayerRange PipelineLayout::layers_of(int model_chunk, int32_t layer_count) const {
  if (first_layer_.empty()) return {0, layer_count};
  require(first_layer_.back() == layer_count, "a pipeline covers every layer of its model");
  return {first_layer_[static_cast<size_t>(model_chunk)],
          first_layer_[static_cast<size_t>(model_chunk) + 1]};
}

int PipelineLayout::model_chunk_of_layer(int32_t layer) const {
  if (first_layer_.empty()) return 0;
  const auto after = std::upper_bound(first_layer_.begin(), first_layer_.end(), layer);
  return static_cast<int>(after - first_layer_.begin()) - 1;
}

std::set<int> stages_of(const Unit& unit, const PipelineLayout& pipeline) {
  std::set<int> stages;
  for (const int layer : unit.layers)
    stages.insert(pipeline.stage_of(pipeline.model_chunk_of_layer(layer)));
  return stages;
}

}  // namespace ftrun
