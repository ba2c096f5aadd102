#pragma once

#include <cstddef>
#include <string>

#include "config/config.h"
#include "model/model_config.h"
#include "sim/rank_class_plans.h"

namespace ftrun {

/// Describes the pipeline of a resolved config: a timeline in at most `width` columns, and for each
/// stage its layers, the share of a step in which it waits, and how many micro-batches it keeps. A
/// phase takes as long as its operations cost (graph/cost.h); transfers take no time. Throws
/// Error(kUsage) without a pipeline.
std::string pipeline_text(const Config& config, const ModelConfig& model, size_t width);

/// Returns a table of the memory of each pipeline stage, on the rank of the stage that allocates
/// most; "" without a pipeline.
std::string stage_memory_text(const RankClassPlans& plans);

/// Returns the number of columns of the terminal on standard output; the default width of a page if
/// standard output is not a terminal.
size_t output_columns();

}  // namespace ftrun
