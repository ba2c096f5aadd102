#pragma once

#include <string>

#include "axes/pipeline/pipeline_layout.h"
#include "axes/pipeline/schedule.h"
#include "config/config.h"
#include "model/description.h"

namespace ftrun {

// The functions of this header read what a resolved config says of its pipeline.

/// Returns the number of stages, or of model chunks on each stage; 1 without a pipeline.
int pipeline_stages(const Config& config);
int pipeline_chunks(const Config& config);

/// Returns the schedule of parallel.schedule; without a pipeline 1F1B, which keeps the activations
/// of one micro-batch at a time.
PipelineSchedule pipeline_schedule(const Config& config);

/// Throws Error(kUsage) with the arithmetic for a model of `blocks` blocks (decoder layers) that
/// cannot be divided as the config says.
void check_pipeline(const Config& config, int64_t blocks);

/// Computes which layers each stage has: those of parallel.pipeline_layers, or a balanced division
/// by pipeline.partition. `model` is built for training. Throws the errors of check_pipeline().
PipelineLayout pipeline_layout(const Config& config, const ModelDescription& model);

/// Returns a notice of the share of a step in which a stage is idle if all model chunks take
/// equally long. Returns "" without a pipeline, and if a step has at least four micro-batches for
/// each stage.
std::string bubble_notice(const Config& config);

}  // namespace ftrun
