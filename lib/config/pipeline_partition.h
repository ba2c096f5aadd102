#pragma once

#include <cstdint>

namespace ftrun {

/// pipeline.partition: by what the parts of a model are made as equal as they can be
/// where a pipeline cuts it.
enum class PipelinePartition : uint8_t {
  kCost,        // "best": time of forward and backward (graph/cost.h)
  kParameters,  // "parameters": their elements; a tied output matrix counts in the head too
  kLayers,      // "uniform": number of layers, embedding and head among them
  kBlocks,      // "type:REGEX" that matches decoder layers: number of these
};

}  // namespace ftrun
