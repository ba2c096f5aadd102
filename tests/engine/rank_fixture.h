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
#include "engine/rank_communicators.h"
#include "program/step_plan.h"
#include "temporary_folder.h"
#include "thrown_error.h"
#include "training/decide_step.h"
#include "training/scheduled_scalars.h"

namespace ftrun::testing {

/// Returns a model of two layers with hidden size 16, four query and two key/value heads of size 4,
/// and a vocabulary of 32. Each of its units fits in one block, so some ranks hold no part of it.
ModelConfig small_model(bool tied = false);

/// Returns a model of three layers with hidden size 64 and a vocabulary of 200. Its units have
/// several blocks, which three ranks share unevenly.
ModelConfig model_of_many_blocks(bool tied = false);
/// Replaces all norms of a model by layer norms without weight and bias.
void remove_norm_weights(ModelConfig& model);

/// Returns a config with rows of 8 tokens, two rows in a micro-batch and two micro-batches in a
/// step.
Config small_run_config();

/// The factor of the loss with which RankFixture::prepare_step() trains.
inline constexpr float kLossScale = 0.01F;
inline constexpr double kClipNorm = 1.0;

/// Returns a config of ZeRO `stage` without persistent small parameters: every tensor is sharded.
Config config_of_stage(int64_t stage);

/// Returns the config with adapters on all linear layers, and with a dropout rate of 0.25 on the
/// adapters' inputs.
Config with_dropout(Config config);

/// Returns the communicators of a rank whose only communicator is `group`.
inline RankCommunicators communicators_of(Communicator& group) {
  return {{&group}, &group, &group, nullptr};
}

/// Returns the folder of the disk tiers of these tests.
const std::string& swap_folder();

/// Moves parameters (stage 3) and optimizer state (stages 1 to 3) to a tier.
void offload_to(Config& config, OffloadDevice device);

/// Returns element `index` of a tensor in model_folder(): a value in [-0.2, 0.2) that depends on
/// name and index alone.
float weight_of(const std::string& tensor, int64_t index);

/// WeightOf returns element `index` of a tensor.
using WeightOf = std::function<float(const std::string& tensor, int64_t index)>;

/// Writes a Hugging Face folder at `path` with the model and the weights that `weight` returns.
ModelFolder write_model_folder(const std::string& path, const ModelConfig& model,
                               const WeightOf& weight);

/// Returns a Hugging Face folder with the model and the weights of weight_of(). The first call
/// writes it.
const ModelFolder& model_folder(const ModelConfig& model);

/// RankFixtureSettings holds the settings of a fixture that no key of the config sets.
struct RankFixtureSettings {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  /// Selects the trainable tensors; null: all.
  std::function<bool(const TensorInfo&)> trains = nullptr;
  /// Changes this rank's training program; the result is not checked.
  std::function<void(Program&)> mutates = nullptr;
};

/// RankFixture holds everything that one rank of a small run needs: memory, executors and state,
/// with the weights of model_folder(). It sets `parallel.data` to the size of the group.
struct RankFixture {
  /// Builds the fixture, on `gpu` (borrowed) if it is given.
  RankFixture(const Config& config, const ModelConfig& model,
              const RankCommunicators& communicators, Gpu* gpu = nullptr,
              const RankFixtureSettings& settings = {});
  RankFixture(const Config& config, const ModelConfig& model, Communicator& group);

  /// Runs one training step on random batches that depend on `step` and the rank.
  StepRun train(int64_t step);
  /// A factor by which gradients are computed and stored too large, like a loss scale in fp16.
  float gradient_divisor = 1;
  /// Changes the batches of train() before they are used; null: no change.
  std::function<void(int64_t step, MicroBatch& batch)> change_batch;
  /// Prepares the run of a step without creating new batches.
  StepRun prepare_step(int64_t step);
  /// Loads the state of a checkpoint; frozen tensors from model_folder().
  std::vector<StateDtypeChange> load(Checkpoint& checkpoint) {
    return state.load(checkpoint, folder);
  }

  Config config;
  const ModelFolder& folder;
  RankCommunicators communicators;
  StepPlan plan;
  RankMemory memory;
  Executor train_executor;
  Executor evaluation_executor;
  ModelState state;
  int rank;
  /// The batches of the last step.
  std::vector<MicroBatch> batches;
};

/// Writes `value` into element `index` of the tensor that layers read, if this rank has this
/// element. In 16 bits this is a copy, which the next update rebuilds from the master weights.
void overwrite_weight(RankFixture& fixture, const std::string& name, int64_t index, float value);

/// Returns tokens from a counter-based generator; labels are the tokens shifted by one.
MicroBatch random_batch(const BatchShape& shape, uint64_t seed, int64_t vocab_rows = 32);

/// CombinedState combines the slices that ranks save into the state of the whole model. Ranks may
/// add theirs concurrently.
class CombinedState {
 public:
  /// Adds slices. Error(kBug) when an element was added before.
  void add(const std::vector<StateSlice>& slices);

  /// Returns bytes by "tensor.kind". Error(kBug) when an element is missing.
  std::map<std::string, std::vector<std::byte>> contents() const;

 private:
  struct Tensor {
    std::vector<std::byte> bytes;
    std::vector<char> is_added;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Tensor> tensors_;
};

/// Returns what one rank would save if it were the only one.
std::map<std::string, std::vector<std::byte>> saved_contents(const ModelState& state);
/// Returns the slices that a rank saves.
std::vector<std::vector<std::byte>> saved_slices(const ModelState& state);

/// SingleRank holds a communicator of one rank, and the rendezvous that it needs.
struct SingleRank {
  SingleRank();
  std::unique_ptr<Rendezvous> rendezvous;
  std::unique_ptr<Communicator> group;
};

/// Runs `body` on one thread per rank, with a communicator of all ranks; returns the message of
/// each rank's error ("" for none). A long heartbeat keeps the rendezvous' own threads idle, for
/// tests that count allocations.
std::vector<std::string> errors_on_ranks(
    int world_size, const std::function<void(Rendezvous&, Communicator&)>& body,
    std::chrono::milliseconds heartbeat = std::chrono::milliseconds(100),
    CommBackend backend = CommBackend::kAuto);

/// Runs `body` on one thread per rank of the mesh of `options`, with the rank's communicators; the
/// rank in `options` is ignored. Requires that no rank throws.
void run_on_mesh(const StateOptions& options,
                 const std::function<void(Rendezvous&, const RankCommunicators&)>& body);
/// Runs `body` on `replicas` x `shards` ranks: `shards` ranks share each copy of the state. With
/// `secondary_shards` above 1, that many ranks count as a node with secondary shards.
void run_on_mesh(int replicas, int shards,
                 const std::function<void(Rendezvous&, const RankCommunicators&)>& body,
                 int secondary_shards = 1);

/// Requires that no rank threw.
void require_no_failures(const std::vector<std::string>& failures);

}  // namespace ftrun::testing
