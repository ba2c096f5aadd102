#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../kernels/lockstep.h"
#include "mesh_runs.h"

// The exact training is a run without rounding. It compares the rounding error of a layout with
// that of one process.
namespace ftrun::fixtures {

/// ExactTraining is one process that trains in fp64: train_on() without a mesh, with layers'
/// kernels at reference precision and its own AdamW, without weight decay.
class ExactTraining {
 public:
  /// Begins with the weights of model_folder().
  ExactTraining(const Config& config, const ModelConfig& model, int micro_batches);

  /// Makes the gradients of step `step`, from 1, by the weights as they are.
  void find_gradients(int64_t step);
  /// Runs find_gradients() and the update.
  void train(int64_t step);

  /// Returns the mean loss of a token; norm() the norm. Both are of the gradients that were made
  /// last.
  double loss() const;
  double norm() const;
  /// The model's parameters, by name; what is written here is what the next step begins with.
  test::NamedNumbers weights;

 private:
  struct Moments {
    std::vector<double> first, second;
  };
  void update(const std::string& tensor, double gradient_scale, int64_t step);

  const Config config_;
  const int micro_batches_;
  ModelDescription model_;
  test::Lockstep layers_;
  /// Lockstep::results().
  test::NamedNumbers found_;
  std::map<std::string, Moments> moments_;
};

/// Returns the gradient norms of steps 1 .. `steps`.
std::vector<double> exact_norms(const Config& config, const ModelConfig& model, int micro_batches,
                                int64_t steps);

/// Returns |found - exact| / |exact| of each.
std::vector<double> errors_of(const std::vector<double>& found, const std::vector<double>& exact);

/// Returns whether errors are no worse than one process's own. In the first step, from the same
/// weights, an error is at most `times` one process's own there or in its median step. Later steps
/// begin at weights that differ: at most `times` its own in its worst step.
bool no_worse(const std::vector<double>& errors, const std::vector<double>& own, double times);

/// FreshSteps are the steps of layouts that each begin with the weights of the exact training,
/// rounded to fp32: nothing that a step leaves behind is in the next.
class FreshSteps {
 public:
  FreshSteps(const Config& config, const ModelConfig& model, int micro_batches, int64_t steps);
  /// Returns the largest error of a step's gradient norm.
  double worst_norm(const Config& config, const TrainingMesh& mesh) const;

 private:
  const ModelConfig model_;
  const Scratch scratch_;
  std::vector<ModelFolder> folders_;
  std::vector<double> norms_;
};

}  // namespace ftrun::fixtures
