#pragma once

#include <string>

#include "config/config.h"
#include "model/description.h"
#include "program/pipeline_layout.h"
#include "program/schedule.h"

namespace ftrun {

// These functions read what a resolved config says of its pipeline.

/// Stages, and parts of the model a stage; 1 without a pipeline.
int pipeline_stages(const Config& config);
int pipeline_chunks(const Config& config);

/// The schedule of parallel.schedule; 1F1B without a pipeline, as it keeps one micro-batch at a
/// time.
PipelineSchedule pipeline_schedule(const Config& config);

/// Error(kUsage), with the arithmetic, where a model with that many blocks (decoder layers) cannot
/// be cut as the config says.
void require_pipeline(const Config& config, int64_t blocks);

/// Computes which layers each stage has: parallel.pipeline_layers, or balanced by
/// pipeline.partition. `model` is built for training. Errors of require_pipeline.
PipelineLayout pipeline_layout(const Config& config, const ModelDescription& model);

/// Tells how long a stage waits in a step of fewer than four micro-batches a stage, if parts take
/// equally long; "" for more micro-batches and without a pipeline.
std::string bubble_notice(const Config& config);

}  // namespace ftrun
