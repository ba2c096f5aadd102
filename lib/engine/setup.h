#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/model_folder.h"
#include "checkpoint/save_buffers.h"
#include "config/config.h"
#include "engine/compare_kernels.h"
#include "engine/executor.h"
#include "engine/memory.h"
#include "engine/model_state.h"
#include "model/model_config.h"
#include "program/step_plan.h"

namespace ftrun {

/// PlannedModel is the plan of the model that a rank will train. It needs no memory and no other
/// ranks.
struct PlannedModel {
  /// Plans the model, and makes the folder's tensors readable under its names, about which rank 0
  /// logs notices (map_to_model_names()). Throws Error(kBadInput) for an invalid model folder, and
  /// the errors of plan_steps().
  PlannedModel(const Config& config, int rank);

  ModelFolder folder;
  ModelConfig config;
  StepPlan plan;
};

/// TrainingSetup holds the model, programs and memory of a rank, which a step needs. They are made
/// from the config before any weight is read, and do not depend on data.
class TrainingSetup {
 public:
  /// Borrows the communicators of the plan's programs, and the GPU (null for the CPU). `run`
  /// distinguishes this run from others that swap to the same disk.
  TrainingSetup(const Config& config, PlannedModel model, const RankCommunicators& communicators,
                const std::string& run, Gpu* gpu = nullptr);
  TrainingSetup(const TrainingSetup&) = delete;
  TrainingSetup& operator=(const TrainingSetup&) = delete;

  const ProgramPlan& train_plan() const { return model_.plan.train; }
  const ProgramPlan& evaluation_plan() const { return model_.plan.evaluate; }
  /// Returns the program that writes samples of text. The program and its executor exist only if
  /// samples are wanted and there is validation data to begin them with.
  const ProgramPlan& generation_plan() const { return model_.plan.generation.value(); }
  const StepPlan& plan() const { return model_.plan; }
  const RankCommunicators& communicators() const { return communicators_; }
  Executor& train_executor() { return *train_executor_; }
  Executor& evaluation_executor() { return *evaluation_executor_; }
  Executor& generation_executor() { return *generation_executor_; }
  /// Destroys the GPU's captured graphs of all programs. Call it before the communicators are
  /// closed or aborted, because a group may wait for graphs of its collectives without end.
  void drop_captures();
  ModelState& state() { return *state_; }
  const SaveBuffers& save_buffers() const { return save_buffers_; }
  const RankMemory& memory() const { return memory_; }
  /// Returns the bytes of private and shared memory that the process held after a first matrix
  /// multiplication and before any weights were in memory: libraries, threads, their working
  /// memory, data, the staging area of checkpoints, and on a CPU the executors.
  int64_t baseline_bytes() const { return baseline_bytes_; }
  /// Returns the comparison of a GPU's kernels with the CPU's.
  const std::optional<KernelComparison>& kernel_comparison() const { return kernel_comparison_; }
  const ModelConfig& model_config() const { return model_.config; }
  const ModelFolder& folder() const { return model_.folder; }

  /// Returns whether running the model needs all ranks, because a single rank does not have all
  /// parameters.
  bool needs_all_ranks() const {
    const StateOptions& state = model_.plan.options.state;
    return state.tensor.count > 1 || state.pipeline.stages() > 1 ||
           (state.zero_stage == 3 && state_place(state).count > 1);
  }

 private:
  std::unique_ptr<Executor> make_executor(const ProgramPlan& plan);

  const RankCommunicators communicators_;
  const PlannedModel model_;
  SaveBuffers save_buffers_;
  int64_t baseline_bytes_;
  RankMemory memory_;
  std::optional<KernelComparison> kernel_comparison_;
  std::unique_ptr<Executor> train_executor_;
  std::unique_ptr<Executor> evaluation_executor_;
  std::unique_ptr<ModelState> state_;
  std::unique_ptr<Executor> generation_executor_;
};

}  // namespace ftrun
