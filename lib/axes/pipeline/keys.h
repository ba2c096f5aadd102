#pragma once

#include <optional>
#include <string>

#include "axes/pipeline/names.h"
#include "config/config.h"

namespace ftrun {

/// Reads pipeline.partition, in any case as in DeepSpeed; nothing for an unknown word, or an
/// expression that cannot be read or matches no class of decoder layers.
std::optional<PipelinePartition> pipeline_partition(const std::string& text);

/// Computes the parts that a resolved config cuts a model into, which may be too many for a number
/// of layers: "8 parts (pipeline 4 × virtual_stages 2)".
double pipeline_parts(const ParallelConfig& mesh);
std::string pipeline_parts_text(const ParallelConfig& mesh);

}  // namespace ftrun
