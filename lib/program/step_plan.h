#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/config.h"
#include "model/description.h"
#include "partition/units.h"
#include "program/program.h"
#include "program/step_builder.h"

namespace ftrun {

/// A model built for one mode and the program that runs it.
struct PassPlan {
  ModelDescription model;
  Program program;
};

/// What a run's ranks will do, planned from texts alone: no tensors, no ranks.
struct StepPlan {
  Partition partition;
  PassPlan train;
  PassPlan evaluate;
};

/// Names of the flat optimizer state buffers, as checkpoints call them: {"exp_avg", "exp_avg_sq"}.
std::vector<std::string> optimizer_state_kinds(const OptimizerConfig& optimizer);

/// What the weight decay of a run applies to: all tensors, or all but norms and biases.
std::function<bool(const TensorInfo&)> decay_rule(const TrainConfig& train);

/// Plans the steps of a resolved config. Errors of build_model.
StepPlan plan_steps(const Config& config, const ModelConfig& model);

/// The program that continues a text, for rows of at most `tokens` tokens.
PassPlan plan_logits(const ModelConfig& model, const Partition& partition, int64_t tokens);

}  // namespace ftrun
