#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "mesh_runs.h"

namespace ftrun::fixtures {

/// One layout of a run of 8 layers, and what else shapes it.
struct LatticeCell {
  TrainingMesh mesh;
  int64_t stage = 0;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  RecomputeLevel recompute = RecomputeLevel::kNone;
  /// "llama", "mistral" (windows), "qwen2" (biases of q, k and v), "qwen3" (norms of heads).
  std::string family = "llama";
  bool tied = false;
  /// Where optimizer state and, at stage 3, parameters lie.
  OffloadDevice place = OffloadDevice::kNone;

  /// What it has on each axis, in the order of lattice_axes().
  std::vector<std::string> values() const;
  ModelConfig model() const;
  Config config() const;
};
const std::vector<std::string>& lattice_axes();

/// Each mesh of tensor {1,2,4} x pipeline {1,2,4} x dp_shard {1,2,3} x dp_replicate {1,2} of 2 to 8 ranks.
std::vector<TrainingMesh> lattice_meshes();

/// Meshes x ZeRO stages x schedules, complete, on llama; at stage 0 replicas are shards by another name.
std::vector<LatticeCell> complete_cells();

/// So many cells that each pair of values of two axes that some cell can have is in one of them. Accumulation
/// on one rank is of 1, 2, 5 or 8 micro-batches.
std::vector<LatticeCell> covering_cells(const std::vector<TrainingMesh>& meshes);

/// Pairs of values of two axes.
using AxisPair = std::tuple<size_t, std::string, size_t, std::string>;
std::vector<AxisPair> pairs_of(const LatticeCell& cell);

/// Runs cells against one process, which it asks once for each model and global batch.
class Lattice {
 public:
  explicit Lattice(int64_t steps) : steps_(steps) {}
  Differences run(const LatticeCell& cell);

 private:
  const int64_t steps_;
  std::map<std::string, TrainingOutcome> alone_;
};

}  // namespace ftrun::fixtures
