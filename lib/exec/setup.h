#pragma once

#include <memory>
#include <optional>

#include "checkpoint/model_folder.h"
#include "config/config.h"
#include "exec/executor.h"
#include "exec/memory.h"
#include "exec/model_state.h"
#include "model/config.h"
#include "program/step_plan.h"

namespace ftrun {

/// The model, programs and memory of a rank, made from the config: what a step needs, before any
/// weight is read. Nothing here depends on data.
class TrainingSetup {
 public:
  /// `data_group` is borrowed. Error(kBadInput) for the model folder.
  TrainingSetup(const Config& config, Communicator& data_group);
  TrainingSetup(const TrainingSetup&) = delete;
  TrainingSetup& operator=(const TrainingSetup&) = delete;

  const PassPlan& train() const { return plan_.train; }
  const PassPlan& evaluate() const { return plan_.evaluate; }
  const Partition& partition() const { return plan_.partition; }
  Executor& trainer() { return *train_executor_; }
  Executor& evaluator() { return *evaluate_executor_; }
  ModelState& state() { return *state_; }
  const RankMemory& memory() const { return memory_; }
  const ModelConfig& model_config() const { return model_config_; }
  const ModelFolder& folder() const { return folder_; }

  /// A pass that continues text, made when first asked for: nobody pays for it before.
  struct Writer {
    PassPlan plan;
    std::unique_ptr<Executor> executor;
  };
  Writer& writer();

 private:
  Communicator& group_;
  ModelFolder folder_;
  ModelConfig model_config_;
  StepPlan plan_;
  RankMemory memory_;
  std::unique_ptr<Executor> train_executor_;
  std::unique_ptr<Executor> evaluate_executor_;
  std::unique_ptr<ModelState> state_;
  std::optional<Writer> writer_;
};

}  // namespace ftrun
