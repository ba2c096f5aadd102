#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "axes/data/secondary_shards.h"
#include "axes/mesh.h"
#include "config/config.h"
#include "model/description.h"
#include "model/model_config.h"
#include "partition/units.h"
#include "program/program.h"
#include "program/step_builder.h"

namespace ftrun {

/// ProgramPlan holds a model built for one mode, the program that runs it, and where its state
/// lies.
struct ProgramPlan {
  ModelDescription model;
  Program program;
  std::vector<UnitStatePiece> pieces;
  std::vector<UnitSharding> shardings;
};

/// StepPlan holds all programs that a rank will run. It is made from configs alone, without tensors
/// or other ranks.
struct StepPlan {
  Partition partition;
  StepOptions options;
  ProgramPlan train;
  ProgramPlan evaluate;
  /// The number of micro-batches that one run of `evaluate` reads: several where a pipeline would
  /// idle with a single one.
  int32_t evaluation_micro_batches = 1;
  /// The program that scores each next token of a text (train.generate); nothing where no text is
  /// generated, or there is no validation data to begin one with.
  std::optional<ProgramPlan> generation;

  /// Lists the programs that a rank runs, one at a time: training, validation and, if wanted,
  /// generation.
  std::vector<const ProgramPlan*> program_plans() const;
  std::vector<const Program*> programs() const;
};

/// Returns a function that selects the tensors that weight decay applies to in a run: all, or all
/// except norms and biases.
std::function<bool(const TensorInfo&)> decay_rule(const TrainConfig& train);

/// Returns whether a run of a resolved config writes any checkpoint while training continues.
bool saves_in_background(const Config& config);

/// Plans the steps of rank `rank` of a resolved config. Throws the errors of
/// build_training_model().
StepPlan plan_steps(const Config& config, const ModelConfig& model, int rank);

/// Returns the bytes of all tensors in a checkpoint, over all ranks. Frozen tensors are not saved.
int64_t checkpoint_bytes(const StepPlan& plan);

/// Plans the program that scores each next token of a text, in sequences of at most `tokens`
/// tokens.
ProgramPlan plan_generation(const ModelConfig& model, const StepPlan& plan, int64_t tokens);

}  // namespace ftrun
