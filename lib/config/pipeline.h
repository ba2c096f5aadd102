#pragma once

#include <optional>
#include <string>

namespace ftrun {

/// By what the parts of a model are made equal where a pipeline cuts it.
enum class PipelinePartition {
  kCost,        // "best": time of forward and backward
  kParameters,  // "parameters"
  kLayers,      // "uniform": number of layers
  kBlocks,      // "type:REGEX" that matches decoder layers: number of these
};

/// What pipeline.partition says, in any case as in DeepSpeed; nothing where it is no such word, or
/// its expression cannot be read or matches no class of decoder layers.
std::optional<PipelinePartition> pipeline_partition(const std::string& text);

}  // namespace ftrun
