#pragma once

#include <optional>
#include <string>

#include "axes/pipeline/schedule_traits.h"
#include "config/config.h"

namespace ftrun {

/// Reads the value of pipeline.partition; case is ignored, as in DeepSpeed. Returns nothing for an
/// unknown word, or for an expression that is invalid or matches no class of decoder layers.
std::optional<PipelineBalance> parse_pipeline_balance(const std::string& text);

/// Return the number of model chunks into which a resolved config cuts a model (a double, because
/// it may be too large for a number of layers), and its text: "8 chunks (pipeline 4 ×
/// virtual_stages 2)".
double pipeline_model_chunks(const ParallelConfig& mesh);
std::string pipeline_model_chunks_text(const ParallelConfig& mesh);

}  // namespace ftrun
