#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "axes/pipeline/schedule.h"
#include "model/description.h"
#include "partition/units.h"
#include "program/loss_slots.h"
#include "program/program.h"
#include "program/state_options.h"

namespace ftrun {

/// StepOptions specifies what a step does in addition to the operation lists of the model.
struct StepOptions {
  /// The number of micro-batches of a step on each rank (gradient accumulation), and the order of
  /// their passes.
  int32_t micro_batches = 1;
  PipelineSchedule schedule = kDefaultSchedule;
  StateOptions state;
  /// The size of buckets in elements (DeepSpeed's reduce_bucket_size and allgather_bucket_size).
  int64_t bucket_elements = 500'000'000;
  int64_t gather_bucket_elements = 500'000'000;
  /// Limits of stage 3 in elements (stage3_prefetch_bucket_size, stage3_max_live_parameters,
  /// stage3_max_reuse_distance).
  int64_t prefetch_elements = 50'000'000;
  int64_t max_live_elements = 1'000'000'000;
  int64_t reuse_distance = 0;
  /// Says whether communication overlaps computation (DeepSpeed's overlap_comm).
  bool overlap = true;
  /// Says whether the inputs of layers are kept on the host until backward (cpu_checkpointing).
  bool offload_activations = false;
  /// The sizes of the arenas of the rank's training step, which its other programs share
  /// (assign_arena_offsets).
  ArenaBytes arenas{};
};

/// StepProgram holds a program, and the pieces of the model's state in its persistent buffers.
struct StepProgram {
  Program program;
  std::vector<UnitStatePiece> pieces;
  std::vector<UnitSharding> shardings;
};

/// Builds one optimizer step with passes applied: the actions of the schedule, reduction of
/// gradients and loss, norm, decision, update. The model must be built with GraphMode::kTrain.
StepProgram build_training_step(const ModelDescription& model, const Partition& partition,
                                const StepOptions& options);

/// Builds the forward passes of `micro_batches` micro-batches, with the loss summed into the loss
/// buffer over all ranks. The model must be built with GraphMode::kEvaluate.
StepProgram build_evaluation_step(const ModelDescription& model, const Partition& partition,
                                  const StepOptions& options);

/// Builds one forward pass that leaves logits [N,V] in the buffer "logits" (GraphMode::kLogits), on
/// the stage of the pipeline that has the head. Where parameters are sharded all ranks run it
/// together.
StepProgram build_generation_step(const ModelDescription& model, const Partition& partition,
                                  const StepOptions& options);

}  // namespace ftrun
