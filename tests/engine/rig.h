#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/open.h"
#include "engine/executor.h"
#include "engine/memory.h"
#include "engine/model_state.h"
#include "program/step_plan.h"
#include "training/decide_step.h"
#include "training/scheduled_scalars.h"

namespace ftrun::fixtures {

/// Returns a model of two layers of hidden 16, four query and two key/value heads of 4, 32 rows of
/// vocabulary. Each of its units fits one block, so that some ranks hold nothing of it.
ModelConfig small_model(bool tied = false);

/// Returns a model of three layers of hidden 64 and 200 rows of vocabulary: units of several blocks
/// that three ranks share unevenly.
ModelConfig model_of_many_blocks(bool tied = false);
/// Makes all norms of a model layer norms that have neither a weight nor a bias.
void without_norm_weights(ModelConfig& model);

/// Returns a run with rows of 8 tokens, two in a micro-batch, two micro-batches in a step.
Config small_run();

/// The loss scale with which RankRig::prepared() trains.
inline constexpr float kLossScale = 0.01F;
inline constexpr double kClipNorm = 1.0;

/// Returns a run of ZeRO `stage`, with nothing small enough to be left on every rank.
Config run_of_stage(int64_t stage);

/// Returns the run with adapters of all products; dropout makes a quarter of their operands'
/// elements 0.
Config with_dropout(Config config);

/// Scratch is a folder that is removed with the object.
struct Scratch {
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string path;
};

/// Returns the folder of the disk tiers of these tests.
const std::string& swap_folder();

/// Puts parameters (stage 3) and optimizer state (stages 1 to 3) on a tier.
void offload_to(Config& config, OffloadDevice device);

/// Returns element `index` of a tensor as model_folder() holds it: in [-0.2, 0.2), by its name and
/// place.
float weight_of(const std::string& tensor, int64_t index);

/// WeightOf returns element `index` of a tensor.
using WeightOf = std::function<float(const std::string& tensor, int64_t index)>;

/// Makes the folder `path`, a Hugging Face folder with a model of these weights.
ModelFolder write_model_folder(const std::string& path, const ModelConfig& model,
                               const WeightOf& weight);

/// Returns a Hugging Face folder with the model's weights, made when first asked for.
const ModelFolder& model_folder(const ModelConfig& model);

/// Otherwise holds the settings of a rig that no key of the config sets.
struct Otherwise {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  /// Tensors that are updated; all when empty.
  std::function<bool(const TensorInfo&)> trains = nullptr;
  /// Changes this rank's training program, which nobody checks.
  std::function<void(Program&)> mutates = nullptr;
};

/// RankRig is what a rank of a small run holds: memory, executors and state, with the weights of
/// model_folder(). `parallel.data` is set to the group's size.
struct RankRig {
  /// Makes the rig on `gpu`, which is borrowed, if it is given.
  RankRig(const Config& config, const ModelConfig& model, const RankGroups& groups,
          Gpu* gpu = nullptr, const Otherwise& otherwise = {});
  RankRig(const Config& config, const ModelConfig& model, Communicator& group);

  /// Runs one training step on random batches, which depend on `step` and the rank.
  StepRun train(int64_t step);
  /// The factor by which gradients are made and kept too large: the effect of a loss scale in fp16.
  float gradient_multiple = 1;
  /// Changes train()'s batches before they are trained on.
  std::function<void(int64_t step, Batch& batch)> change_batch;
  /// Prepares what train() runs, without new batches.
  StepRun prepared(int64_t step);
  /// Loads the state of a checkpoint; frozen tensors from model_folder().
  std::vector<StateConversion> load(Checkpoint& checkpoint) {
    return state.load(checkpoint, folder);
  }

  Config config;
  const ModelFolder& folder;
  RankGroups groups;
  StepPlan plan;
  RankMemory memory;
  Executor train_executor;
  Executor evaluate_executor;
  ModelState state;
  int rank;
  /// Storage of the last step's batches.
  std::vector<Batch> batches;
};

/// Writes `value` into element `index` of the tensor that layers read, where this rank has it. In
/// 16 bits it is a copy, which the next update makes anew from the master weights.
void plant(RankRig& rig, const std::string& name, int64_t index, float value);

/// Returns tokens from a counter-based generator; labels are the tokens moved by one.
Batch random_batch(const BatchShape& shape, uint64_t seed, int64_t vocab_rows = 32);

/// WholeState is the whole model's state, combined from the slices that ranks save. Ranks may add
/// theirs at any time.
class WholeState {
 public:
  /// Adds slices. Error(kBug) when an element was added before.
  void add(const std::vector<StateSlice>& slices);

  /// Returns bytes by "tensor.kind". Error(kBug) when an element is missing.
  std::map<std::string, std::vector<std::byte>> take() const;

 private:
  struct Tensor {
    std::vector<std::byte> bytes;
    std::vector<char> there;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Tensor> tensors_;
};

/// Returns what one rank would save without others.
std::map<std::string, std::vector<std::byte>> contents(const ModelState& state);
/// Returns the slices that a rank saves.
std::vector<std::vector<std::byte>> own_slices(const ModelState& state);

/// Alone is a communicator of one rank, and what it needs.
struct Alone {
  Alone();
  std::unique_ptr<Rendezvous> rendezvous;
  std::unique_ptr<Communicator> group;
};

/// Runs `body` on a thread a rank, with a communicator of all; returns what each threw (""). A long
/// heartbeat keeps the rendezvous' own threads still, for tests that count allocations.
std::vector<std::string> on_ranks(
    int world, const std::function<void(Rendezvous&, Communicator&)>& body,
    std::chrono::milliseconds heartbeat = std::chrono::milliseconds(100),
    CommBackend backend = CommBackend::kAuto);

/// Runs `body` with the groups of a mesh; the rank's place in the options is ignored. REQUIREs that
/// none threw.
void on_mesh(const StateOptions& mesh,
             const std::function<void(Rendezvous&, const RankGroups&)>& body);
/// Runs `body` on `shards` ranks that share a copy of the state, and nodes of `node` of them with
/// secondary shards.
void on_mesh(int replicas, int shards,
             const std::function<void(Rendezvous&, const RankGroups&)>& body,
             int secondary_shards = 1);

/// Returns the message of the error that `work` throws; "" for none.
std::string message_of(const std::function<void()>& work);

/// Requires that no rank threw.
void require_none(const std::vector<std::string>& failures);

}  // namespace ftrun::fixtures
