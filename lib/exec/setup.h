#pragma once

#include <memory>
#include <string>

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
  /// The groups and the GPU (null for the processor) are borrowed. `run` names this run among others
  /// that swap to the same disk.
  /// Error(kBadInput) for the model folder.
  TrainingSetup(const Config& config, const RankGroups& groups, const std::string& run, Gpu* gpu = nullptr);
  TrainingSetup(const TrainingSetup&) = delete;
  TrainingSetup& operator=(const TrainingSetup&) = delete;

  const PassPlan& train() const { return plan_.train; }
  const PassPlan& evaluate() const { return plan_.evaluate; }
  const Partition& partition() const { return plan_.partition; }
  const StepPlan& plan() const { return plan_; }
  const RankGroups& groups() const { return groups_; }
  Executor& trainer() { return *train_executor_; }
  Executor& evaluator() { return *evaluate_executor_; }
  ModelState& state() { return *state_; }
  const RankMemory& memory() const { return memory_; }
  /// What the process held, of its own and shared memory, before the first of it was allocated and
  /// after a first product: libraries, threads, their working memory, data.
  int64_t held_before() const { return held_before_; }
  const ModelConfig& model_config() const { return model_config_; }
  const ModelFolder& folder() const { return folder_; }

  /// True when one rank alone does not have all parameters.
  bool shards_parameters() const { return plan_.options.state.stage == 3 && groups_.shard->size() > 1; }

  /// A pass that continues text, made when first asked for: nobody pays for it before.
  struct Writer {
    PassPlan plan;
    std::unique_ptr<Executor> executor;
  };
  /// Error(kEnvironment) when it does not fit the memory that training has.
  Writer& writer();

 private:
  const RankGroups groups_;
  ModelFolder folder_;
  ModelConfig model_config_;
  StepPlan plan_;
  int64_t held_before_;
  RankMemory memory_;
  std::unique_ptr<Executor> train_executor_;
  std::unique_ptr<Executor> evaluate_executor_;
  std::unique_ptr<ModelState> state_;
  std::unique_ptr<Writer> writer_;
};

}  // namespace ftrun
