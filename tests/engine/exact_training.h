#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../kernels/lockstep.h"
#include "mesh_runs.h"

// The exact training runs in fp64, practically without rounding. Tests use it to compare the
// rounding error of a layout with that of one process.
namespace ftrun::testing {

/// ExactTraining trains in fp64 in one process: the counterpart of train_on_mesh() without a mesh,
/// with the reference implementations of the layers' kernels and its own AdamW, without weight
/// decay.
class ExactTraining {
 public:
  /// Begins with the weights of model_folder().
  ExactTraining(const Config& config, const ModelConfig& model, int micro_batches);

  /// Computes the gradients of step `step` (from 1) for the current weights.
  void compute_gradients(int64_t step);
  /// Calls compute_gradients(), then updates the weights.
  void train(int64_t step);

  /// Returns the mean loss of a token in the last compute_gradients(); norm() returns the norm of
  /// its gradients.
  double loss() const;
  double norm() const;
  /// The model's parameters, by name. A caller may overwrite them: the next step begins with these
  /// values.
  testing::NamedNumbers weights;

 private:
  struct Moments {
    std::vector<double> first, second;
  };
  void update(const std::string& tensor, double gradient_scale, int64_t step);

  const Config config_;
  const int micro_batches_;
  ModelDescription model_;
  testing::Lockstep layers_;
  /// The results of the last forward and backward pass, as Lockstep::results() returns them.
  testing::NamedNumbers results_;
  std::map<std::string, Moments> moments_;
};

/// Returns the gradient norms of steps 1 .. `steps`.
std::vector<double> exact_norms(const Config& config, const ModelConfig& model, int micro_batches,
                                int64_t steps);

/// Returns the relative error |found - exact| / |exact| of each element.
std::vector<double> relative_errors(const std::vector<double>& found,
                                    const std::vector<double>& exact);

/// Returns whether the errors `errors` of a layout are no worse than those of one process, `own`.
/// The first step starts from the same weights: its error may be at most `times` the larger of one
/// process's first and median error. Later steps start from weights that differ already: each error
/// may be at most `times` one process's largest.
bool is_no_worse(const std::vector<double>& errors, const std::vector<double>& own, double times);

/// FreshSteps runs steps of layouts that each begin with the weights of the exact training, rounded
/// to fp32, so that no step inherits the error of an earlier one.
class FreshSteps {
 public:
  FreshSteps(const Config& config, const ModelConfig& model, int micro_batches, int64_t steps);
  /// Returns the largest error of a step's gradient norm.
  double largest_norm_error(const Config& config, const TrainingMesh& mesh) const;

 private:
  const ModelConfig model_;
  const TemporaryFolder scratch_;
  std::vector<ModelFolder> folders_;
  std::vector<double> norms_;
};

}  // namespace ftrun::testing
