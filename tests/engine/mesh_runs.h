#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rank_fixture.h"

namespace ftrun::testing {

/// Returns a copy of the model with another number of layers.
ModelConfig with_layers(ModelConfig model, int64_t layers);

/// TrainingMesh is the number of ranks along each dimension of a mesh.
struct TrainingMesh {
  int tensor = 1;
  int shards = 1;
  int replicas = 1;
  int stages = 1;
  /// The number of micro-batches in the global batch.
  int micro_batches = 12;

  int data() const { return shards * replicas; }
  int ranks() const { return data() * tensor * stages; }
  std::string text() const;
};

/// SavedState holds the bytes of each state, by "tensor.kind".
using SavedState = std::map<std::string, std::vector<std::byte>>;

/// TrainingOutcome is the result of training: the loss and norm of each step, and the final states.
struct TrainingOutcome {
  std::vector<double> losses;
  std::vector<double> norms;
  SavedState state;
  bool operator==(const TrainingOutcome&) const = default;
};

/// Runs RankFixture::train for steps 1 .. `steps`, all of which must be finite, and records the sum
/// of losses and the norm of each step.
void train_steps(RankFixture& fixture, int64_t steps, TrainingOutcome& outcome);

/// Differences holds the largest relative difference between two outcomes in the loss of a step and
/// in its norm, and the difference of each parameter: ||found - expected|| / ||expected||.
struct Differences {
  double loss = 0;
  double norm = 0;
  std::map<std::string, double> weights;
};
Differences differences(const TrainingOutcome& found, const TrainingOutcome& expected);
/// Bounds of the differences between layouts of one run; weight_bound() is that of a parameter.
/// Biases of keys have a larger one: such a bias changes all scores of a query equally, except for
/// rotation, so its gradient is nearly zero and AdamW turns its rounding errors into full steps.
inline constexpr double kLossBound = 1e-5;
inline constexpr double kGradientNormBound = 5e-5;
double weight_bound(const std::string& parameter);

/// Returns the config for a mesh, with the same global batch.
Config config_on_mesh(Config config, const TrainingMesh& mesh);

/// Returns micro-batch `number` of a step's global batch.
MicroBatch micro_batch_of_step(const ModelDescription& model, int64_t step, int64_t number);

/// Sets the fixture's batches: data-parallel rank d of n takes micro-batches d, d + n, d + 2n, ...
void set_batches(RankFixture& fixture, int64_t step);

/// Returns the options of a run on a mesh; their rank is a placeholder.
StateOptions options_of(const TrainingMesh& mesh, const Config& config, const ModelConfig& model);

/// Trains from the weights of model_folder().
TrainingOutcome train_on_mesh(const Config& plain, const ModelConfig& model,
                              const TrainingMesh& mesh, int64_t steps);

/// Lists, by name, changes to the config that must not change a bit of a run with this ZeRO stage:
/// bucket sizes, overlap, tiers, recompute, and what stage 3 keeps or prefetches.
std::vector<std::pair<const char*, std::function<void(Config&)>>> bit_preserving_changes(
    int64_t stage);

/// Trains one step on the mesh's batches.
StepRun train_step(RankFixture& fixture, int64_t step);

/// Runs `work` on each rank of a mesh, and returns the state that the ranks then save together.
SavedState state_saved_on(const Config& plain, const ModelConfig& model, const TrainingMesh& mesh,
                          const std::function<void(Rendezvous&, RankFixture&)>& work);

/// Returns the tensors that the first rank of a mesh collects, each in several pieces. The model
/// has the weights of model_folder().
std::map<std::string, std::vector<float>> tensors_collected_on(const Config& plain,
                                                               const ModelConfig& model,
                                                               const TrainingMesh& mesh);

/// Requires that two outcomes have the same bits.
void require_identical(const TrainingOutcome& found, const TrainingOutcome& expected);
/// Requires that two outcomes, of different layouts of one run, differ by no more than the bounds.
void require_within_bounds(const TrainingOutcome& found, const TrainingOutcome& expected);

}  // namespace ftrun::testing
