#pragma once

#include <cstdint>

namespace ftrun {

/// PipelinePartition is the key pipeline.partition: the quantity that a pipeline divides as equally
/// as possible among the parts of a model.
enum class PipelinePartition : uint8_t {
  kCost,        // "best": time of forward and backward (graph/cost.h)
  kParameters,  // "parameters": their elements; a tied output matrix counts in the head too
  kLayers,      // "uniform": number of layers, embedding and head among them
  kBlocks,      // "type:REGEX" that matches decoder layers: number of these
};

}  // namespace ftrun
