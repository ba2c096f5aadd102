#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rig.h"

namespace ftrun::fixtures {

/// Returns the same model with another number of layers.
ModelConfig with_layers(ModelConfig model, int64_t layers);

/// TrainingMesh is the number of ranks along each dimension of a mesh.
struct TrainingMesh {
  int tensor = 1;
  int shards = 1;
  int replicas = 1;
  int stages = 1;
  /// Micro-batches of the global batch.
  int micro_batches = 12;

  int data() const { return shards * replicas; }
  int ranks() const { return data() * tensor * stages; }
  std::string text() const;
};

/// SavedState is bytes by "tensor.kind".
using SavedState = std::map<std::string, std::vector<std::byte>>;

/// TrainingOutcome is the result of training: each step's loss and norm, and the states.
struct TrainingOutcome {
  std::vector<double> losses;
  std::vector<double> norms;
  SavedState state;
  bool operator==(const TrainingOutcome&) const = default;
};

/// Runs steps 1 .. `steps` of RankRig::train, all finite; notes the first rank's sums of losses and
/// its norms.
void train_steps(RankRig& rig, int64_t steps, TrainingOutcome& outcome);

/// Differences are the largest relative differences of two outcomes in the loss and the norm of a
/// step, and in each parameter: ||found - expected|| / ||expected||.
struct Differences {
  double loss = 0;
  double norm = 0;
  std::map<std::string, double> weights;
};
Differences differences(const TrainingOutcome& found, const TrainingOutcome& expected);
/// Bounds of the differences between layouts of one run. A key's bias changes all scores of a query
/// equally, except for rotation: its gradient is nearly zero, from which AdamW makes full steps,
/// rounding included.
inline constexpr double kLossBound = 1e-5;
inline constexpr double kNormBound = 5e-5;
double weight_bound(const std::string& parameter);

/// Puts the same run on a mesh: the same global batch.
Config meshed(Config config, const TrainingMesh& mesh);

/// Returns micro-batch `number` of a step's global batch.
Batch batch_of_step(const ModelDescription& model, int64_t step, int64_t number);

/// Gives the rig its batches: data-parallel rank d takes micro-batches d, d + n, ... of n ranks.
void give_batches(RankRig& rig, int64_t step);

/// Returns the options of a run on a mesh; the place in it is not meaningful.
StateOptions options_of(const TrainingMesh& mesh, const Config& config, const ModelConfig& model);

/// Trains from the weights of model_folder().
TrainingOutcome train_on(const Config& plain, const ModelConfig& model, const TrainingMesh& mesh,
                         int64_t steps);

/// Lists the changes that change no bit of a run of a ZeRO stage on a mesh, by name: buckets,
/// overlap, tiers, recompute, what is kept and prefetched.
std::vector<std::pair<const char*, std::function<void(Config&)>>> neutral_changes(int64_t stage);

/// Trains one step on the mesh's batches.
StepRun train_step(RankRig& rig, int64_t step);

/// Returns the state that all ranks of a mesh save after `work` on each.
SavedState saved_on(const Config& plain, const ModelConfig& model, const TrainingMesh& mesh,
                    const std::function<void(Rendezvous&, RankRig&)>& work);

/// Returns each tensor that the first rank of a mesh collects, in several pieces, from a model with
/// the weights of model_folder().
std::map<std::string, std::vector<float>> collected_on(const Config& plain,
                                                       const ModelConfig& model,
                                                       const TrainingMesh& mesh);

/// Requires that outcomes have the same bits.
void require_equal(const TrainingOutcome& found, const TrainingOutcome& expected);
/// Requires that outcomes of different layouts of one run differ by no more than the bounds.
void require_same(const TrainingOutcome& found, const TrainingOutcome& expected);

}  // namespace ftrun::fixtures
