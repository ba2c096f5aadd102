#include "optimizers/entries.h"

// Stochastic gradient descent as in torch.optim.SGD, with or without momentum.

namespace ftrun::optimizers {
namespace {

using namespace hyperparameters;

constexpr Hyperparameter kSgdParameters[]{kLr, kWeightDecay, kMomentum, kDampening, kNesterov};
constexpr OptimizerStateTraits kMomentumBuffer[]{{"momentum"}};

std::span<const OptimizerStateTraits> momentum_states(const OptimizerConfig& config) {
  if (config.momentum == 0) return {};
  return kMomentumBuffer;
}

/// Returns the conflict of a config whose Nesterov momentum torch.optim.SGD also refuses.
std::optional<ParameterConflict> nesterov_conflict(const OptimizerConfig& config) {
  if (!config.nesterov || (config.momentum > 0 && config.dampening == 0)) return std::nullopt;
  return ParameterConflict{
      "nesterov", "optimizer.params.nesterov needs a momentum above 0 and dampening 0",
      "set momentum, for example 0.9, and remove dampening, or remove nesterov"};
}

}  // namespace

constinit const OptimizerTraits kSgd{
    .parameters = kSgdParameters, .states = momentum_states, .conflict = nesterov_conflict};

}  // namespace ftrun::optimizers
