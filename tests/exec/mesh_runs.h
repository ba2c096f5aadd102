#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "rig.h"

namespace ftrun::fixtures {

/// Ranks along each dimension of a mesh.
struct TrainingMesh {
  int tensor = 1;
  int shards = 1;
  int replicas = 1;
  int stages = 1;

  int data() const { return shards * replicas; }
  int ranks() const { return data() * tensor * stages; }
  std::string text() const;
};

/// What training leaves: each step's loss and norm, and the states.
struct TrainingOutcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, std::vector<std::byte>> state;
};

/// The same run on a mesh: the same global batch of twelve micro-batches.
Config meshed(Config config, const TrainingMesh& mesh);

/// Data-parallel rank d takes micro-batches d, d + n, ... of n ranks.
void give_batches(RankRig& rig, int64_t step);

/// Of a run on a mesh; the place in it says nothing.
StateOptions options_of(const TrainingMesh& mesh, const Config& config, const ModelConfig& model);

/// Trains from the weights of model_folder().
TrainingOutcome train_on(const Config& plain, const ModelConfig& model, const TrainingMesh& mesh, int64_t steps);

/// REQUIREs what different layouts of one run may differ in at most: 1e-5 in the loss, 5e-5 in the
/// gradient norm, 1e-4 in each tensor.
void require_same(const TrainingOutcome& found, const TrainingOutcome& expected);

}  // namespace ftrun::fixtures
