#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "exact_training.h"
#include "mesh_runs.h"

namespace ftrun::testing {

/// LatticeCell describes one run of a model of 8 layers: its layout and its other settings.
struct LatticeCell {
  TrainingMesh mesh;
  int64_t stage = 0;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  RecomputeLevel recompute = RecomputeLevel::kNone;
  /// The model family: "llama", "mistral" (sliding windows), "qwen2" (biases of q, k and v) or
  /// "qwen3" (norms of heads).
  std::string family = "llama";
  bool tied = false;
  /// The tier of the optimizer state and, at stage 3, also of the parameters.
  OffloadDevice tier = OffloadDevice::kNone;

  /// Returns the cell's value on each axis, in the order of lattice_axes().
  std::vector<std::string> values() const;
  ModelConfig model() const;
  Config config() const;
};
const std::vector<std::string>& lattice_axes();

/// Lists the meshes of tensor {1,2,4} x pipeline {1,2,4} x data {1,2,3} x data_replicate {1,2} of
/// 2 to 8 ranks.
std::vector<TrainingMesh> lattice_meshes();

/// Lists all combinations of meshes, ZeRO stages and schedules, on llama. At stage 0, shards are
/// left out: they would do the same as replicas.
std::vector<LatticeCell> complete_cells();

/// Chooses cells that together contain every pair of values of two axes that any possible cell has.
/// A rank accumulates 1, 2, 5 or 8 micro-batches.
std::vector<LatticeCell> covering_cells(const std::vector<TrainingMesh>& meshes);

/// AxisPair holds an axis and its value, and a second axis and its value.
using AxisPair = std::tuple<size_t, std::string, size_t, std::string>;
std::vector<AxisPair> pairs_of(const LatticeCell& cell);

/// LatticeFigures holds the differences between a cell and one process, and the rounding errors of
/// both compared with a training in fp64.
struct LatticeFigures {
  Differences differences;
  /// The largest error of a step's gradient norm, compared with fp64: the cell's, and one
  /// process's.
  double norm_error = 0;
  double one_process_norm_error = 0;
  /// Errors of the norm if each step begins with the weights of the fp64 training. They are
  /// measured only for a cell whose norm differs by more than kGradientNormBound.
  double fresh_norm_error = 0;
  double one_process_fresh_norm_error = 0;
  bool is_within_bounds = false;
};
/// A cell whose norm differs by more than kGradientNormBound may have an error of kTimesOwnError
/// times that of one process. The norm of a step that begins with the weights of fp64 may have an
/// error of kFreshGradientNormBound.
inline constexpr double kTimesOwnError = 3;
inline constexpr double kFreshGradientNormBound = 1e-5;

/// Returns whether loss and weights, and the norm if `norm` is set, are within their bounds.
bool is_within(const Differences& found, bool norm);

/// Lattice compares cells with one process. It runs the one process once per model and global
/// batch.
class Lattice {
 public:
  explicit Lattice(int64_t steps) : steps_(steps) {}
  Differences run(const LatticeCell& cell);
  /// Runs a cell like run(), and measures the rounding errors of the cell and of one process
  /// against fp64.
  LatticeFigures measure(const LatticeCell& cell);

 private:
  struct Reference {
    TrainingOutcome one_process;
    /// The exact norms; empty until measure() needs them.
    std::vector<double> exact_norms;
    /// The fresh steps; null until a cell's norm differs by more than kGradientNormBound.
    std::unique_ptr<FreshSteps> fresh;
  };
  Reference& reference(const LatticeCell& cell);

  const int64_t steps_;
  std::map<std::string, Reference> references_;
};

}  // namespace ftrun::testing
