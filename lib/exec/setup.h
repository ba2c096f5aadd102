#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_folder.h"
#include "config/config.h"
#include "data/sample_set.h"
#include "exec/executor.h"
#include "exec/memory.h"
#include "exec/model_state.h"
#include "exec/optimizer_plan.h"
#include "model/config.h"
#include "model/description.h"
#include "program/step_builder.h"

namespace ftrun {

/// A model built for one mode, its program, and what runs it.
struct Pass {
  ModelDescription model;
  Program program;
  std::unique_ptr<Executor> executor;
};

/// The model, programs and memory of a rank, made from the config: what a step needs, before any
/// weight is read. Nothing here depends on data.
class TrainingSetup {
 public:
  /// `data_group` is borrowed. Error(kBadInput) for the model folder.
  TrainingSetup(const Config& config, Communicator& data_group);
  TrainingSetup(const TrainingSetup&) = delete;
  TrainingSetup& operator=(const TrainingSetup&) = delete;

  Pass& train() { return train_; }
  Pass& evaluate() { return evaluate_; }
  Pass& logits();
  ModelState& state() { return *state_; }
  const RankMemory& memory() const { return memory_; }
  const ModelConfig& model_config() const { return model_config_; }
  const ModelFolder& folder() const { return folder_; }
  const OptimizerPlan& optimizer() const { return optimizer_; }

 private:
  Communicator& group_;
  ModelFolder folder_;
  ModelConfig model_config_;
  OptimizerPlan optimizer_;
  Partition partition_;
  RankMemory memory_;
  Pass train_;
  Pass evaluate_;
  std::optional<Pass> logits_;
  std::unique_ptr<ModelState> state_;
};

/// Opens a data set as the config says.
std::unique_ptr<SampleSet> open_samples(const DataConfig& data, const std::vector<std::string>& paths);

/// What the weight decay of a run applies to: all tensors, or all but norms and biases.
std::function<bool(const TensorInfo&)> decay_rule(const TrainConfig& train);

/// The step options a config stands for; `ftrun plan` uses them too.
StepOptions step_options_of(const Config& config, int32_t optimizer_states);

}  // namespace ftrun
