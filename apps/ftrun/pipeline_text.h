#pragma once

#include <cstddef>
#include <string>

#include "config/config.h"
#include "model/config.h"

namespace ftrun {

/// The pipeline of a resolved config: its picture in at most `width` columns, and for each stage
/// its layers, the share of a step that it waits, and how many micro-batches it keeps. Phases take
/// as long as their operations cost (graph/cost.h); transfers take no time. Error(kUsage) without a
/// pipeline.
std::string pipeline_text(const Config& config, const ModelConfig& model, size_t width);

/// Columns of the terminal that standard output is, or of a page where it is none.
size_t output_columns();

}  // namespace ftrun
