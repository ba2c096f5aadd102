#include "exact_training.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/decoder.h"

namespace ftrun::testing {
namespace {

/// Builds the model in fp64 with the decoder's own builder. A config cannot ask for it, because
/// fp64 is not a dtype that models may be trained in.
ModelDescription in_fp64(const Config& config, const ModelConfig& model) {
  const BatchShape shape{config.train_micro_batch_size_per_gpu, config.data.sequence_length};
  return build_decoder(model, shape, GraphMode::kTrain, {DType::kF64, DType::kF64}, {}, {}, {});
}

testing::TokenBatch tokens_of(const MicroBatch& batch) {
  return {batch.tokens, batch.positions, batch.starts, batch.labels};
}

}  // namespace

ExactTraining::ExactTraining(const Config& config, const ModelConfig& model, int micro_batches)
    : config_(config),
      micro_batches_(micro_batches),
      model_(in_fp64(config, model)),
      layers_({model_}) {
  require(config.optimizer.type == OptimizerType::kAdamW && config.optimizer.weight_decay == 0.0,
          "an optimizer that the exact training knows");
  layers_.scalars.token_loss_factor = kLossScale;
  for (const TensorInfo& tensor : model_.tensors) {
    std::vector<double>& values = weights[tensor.name];
    for (int64_t i = 0; i < tensor.numel(); ++i) values.push_back(weight_of(tensor.name, i));
    moments_[tensor.name] = {std::vector<double>(values.size()),
                             std::vector<double>(values.size())};
  }
}

void ExactTraining::compute_gradients(int64_t step) {
  layers_.set_parameters(weights);
  for (int i = 0; i < micro_batches_; ++i)
    layers_.step(tokens_of(micro_batch_of_step(model_, step, i)), i > 0);
  results_ = layers_.results();
}

double ExactTraining::loss() const {
  return results_.at("loss")[0] / results_.at("loss")[1];
}

double ExactTraining::norm() const {
  double squares = 0;
  for (const auto& [tensor, values] : weights)
    for (const double g : results_.at(tensor)) squares += g * g;
  return std::sqrt(squares);
}

void ExactTraining::update(const std::string& tensor, double gradient_scale, int64_t step) {
  const OptimizerConfig& options = config_.optimizer;
  const auto [beta1, beta2] = options.betas;
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  std::vector<double>& values = weights.at(tensor);
  Moments& moments = moments_.at(tensor);
  for (size_t i = 0; i < values.size(); ++i) {
    const double g = results_.at(tensor)[i] * gradient_scale;
    double& m = moments.first[i];
    double& v = moments.second[i];
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    values[i] -= options.lr * (m / correction1) / (std::sqrt(v / correction2) + options.eps);
  }
}

void ExactTraining::train(int64_t step) {
  compute_gradients(step);
  const double gradient_scale = std::min(1.0, kClipNorm / (norm() + 1e-6));
  for (const TensorInfo& tensor : model_.tensors) update(tensor.name, gradient_scale, step);
}

std::vector<double> exact_norms(const Config& config, const ModelConfig& model, int micro_batches,
                                int64_t steps) {
  ExactTraining training(config, model, micro_batches);
  std::vector<double> norms;
  for (int64_t step = 1; step <= steps; ++step) {
    training.train(step);
    norms.push_back(training.norm());
  }
  return norms;
}

std::vector<double> relative_errors(const std::vector<double>& found,
                                    const std::vector<double>& exact) {
  require(found.size() == exact.size(), "as many steps");
  std::vector<double> errors;
  for (size_t i = 0; i < exact.size(); ++i)
    errors.push_back(std::abs(found[i] - exact[i]) / std::abs(exact[i]));
  return errors;
}

bool is_no_worse(const std::vector<double>& errors, const std::vector<double>& own, double times) {
  std::vector<double> sorted = own;
  std::sort(sorted.begin(), sorted.end());
  if (errors[0] > times * std::max(own[0], sorted[sorted.size() / 2])) return false;
  return *std::max_element(errors.begin(), errors.end()) <= times * sorted.back();
}

FreshSteps::FreshSteps(const Config& config, const ModelConfig& model, int micro_batches,
                       int64_t steps)
    : model_(model) {
  ExactTraining training(config, model, micro_batches);
  for (int64_t step = 1; step <= steps; ++step) {
    const testing::NamedNumbers exact = training.weights;
    for (auto& [tensor, values] : training.weights)
      for (double& value : values) value = static_cast<float>(value);
    folders_.push_back(write_model_folder(
        scratch_ / std::to_string(step), model, [&](const std::string& tensor, int64_t i) {
          return static_cast<float>(training.weights.at(tensor)[static_cast<size_t>(i)]);
        }));
    training.compute_gradients(step);
    norms_.push_back(training.norm());
    training.weights = exact;
    training.train(step);
  }
}

double FreshSteps::largest_norm_error(const Config& config, const TrainingMesh& mesh) const {
  std::vector<double> found;
  state_saved_on(config, model_, mesh, [&](Rendezvous& rendezvous, RankFixture& fixture) {
    for (size_t i = 0; i < folders_.size(); ++i) {
      // The barrier keeps this rank from overwriting its weights while other ranks, still in the
      // previous step, read them.
      fixture.communicators.host_world->barrier({"the step before is done"});
      fixture.state.load(folders_[i]);
      fixture.communicators.host_world->barrier({"all have the weights"});
      const StepRun run = train_step(fixture, static_cast<int64_t>(i) + 1);
      if (rendezvous.rank() == 0) found.push_back(run.result.gradient_norm);
    }
  });
  const std::vector<double> errors = relative_errors(found, norms_);
  return *std::max_element(errors.begin(), errors.end());
}

}  // namespace ftrun::testing
