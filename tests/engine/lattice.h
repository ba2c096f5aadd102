#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "exact_training.h"
#include "mesh_runs.h"

namespace ftrun::fixtures {

/// LatticeCell is one layout of a run of 8 layers, and its other properties.
struct LatticeCell {
  TrainingMesh mesh;
  int64_t stage = 0;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  RecomputeLevel recompute = RecomputeLevel::kNone;
  /// "llama", "mistral" (windows), "qwen2" (biases of q, k and v), "qwen3" (norms of heads).
  std::string family = "llama";
  bool tied = false;
  /// The tier of optimizer state and, at stage 3, of parameters.
  OffloadDevice place = OffloadDevice::kNone;

  /// Returns the cell's value on each axis, in the order of lattice_axes().
  std::vector<std::string> values() const;
  ModelConfig model() const;
  Config config() const;
};
const std::vector<std::string>& lattice_axes();

/// Lists the meshes of tensor {1,2,4} x pipeline {1,2,4} x dp_shard {1,2,3} x dp_replicate {1,2} of
/// 2 to 8 ranks.
std::vector<TrainingMesh> lattice_meshes();

/// Lists meshes x ZeRO stages x schedules, complete, on llama; at stage 0 replicas are shards by
/// another name.
std::vector<LatticeCell> complete_cells();

/// Chooses enough cells that each pair of values of two axes that some cell can have is in one of
/// them. Accumulation on one rank is of 1, 2, 5 or 8 micro-batches.
std::vector<LatticeCell> covering_cells(const std::vector<TrainingMesh>& meshes);

/// AxisPair is a pair of values of two axes.
using AxisPair = std::tuple<size_t, std::string, size_t, std::string>;
std::vector<AxisPair> pairs_of(const LatticeCell& cell);

/// LatticeFigures compare a cell with one process and with fp64.
struct LatticeFigures {
  Differences differences;
  /// Largest errors of a step's gradient norm against fp64, and those of one process.
  double norm_error = 0;
  double own_norm_error = 0;
  /// The error where each step begins with the weights of fp64, for a cell whose norm is beyond
  /// kNormBound.
  double fresh_norm_error = 0;
  double own_fresh_norm_error = 0;
  bool within = false;
};
/// The factor of one process's own error that a cell's may reach when its norm is beyond
/// kNormBound, and the error that a step's norm may have from the weights of fp64.
inline constexpr double kTimesOwnError = 3;
inline constexpr double kFreshNormBound = 1e-5;

/// Returns whether loss and weights are within their bounds, and the norm if `norm`.
bool is_within(const Differences& found, bool norm);

/// Lattice compares cells with one process, which it runs once for each model and global batch.
class Lattice {
 public:
  explicit Lattice(int64_t steps) : steps_(steps) {}
  Differences run(const LatticeCell& cell);
  /// Runs a cell as run(), and measures how far rounding takes it and one process from fp64.
  LatticeFigures measure(const LatticeCell& cell);

 private:
  struct Reference {
    TrainingOutcome alone;
    /// The norms, once measure() was asked.
    std::vector<double> exact_norms;
    /// The fresh steps, once a cell's norm was beyond kNormBound.
    std::unique_ptr<FreshSteps> fresh;
  };
  Reference& reference(const LatticeCell& cell);

  const int64_t steps_;
  std::map<std::string, Reference> references_;
};

}  // namespace ftrun::fixtures
