#include "optimizers/entries.h"

// Adagrad as in torch.optim.Adagrad. Its state is the sum of the squares of each element's
// gradients.

namespace ftrun::optimizers {
namespace {

using namespace hyperparameters;

constexpr Hyperparameter kAdagradParameters[]{
    kLr,
    kEps,
    kWeightDecay,
    {"lr_decay", "Decay of the learning rate.", &OptimizerConfig::lr_decay, 0},
    {"initial_accumulator_value", "Start of the sum of squares.",
     &OptimizerConfig::initial_accumulator_value, 0}};
constexpr OptimizerStateTraits kAdagradSum[]{{"sum", &OptimizerConfig::initial_accumulator_value}};

std::span<const OptimizerStateTraits> adagrad_states(const OptimizerConfig&) {
  return kAdagradSum;
}

}  // namespace

constinit const OptimizerTraits kAdagrad{.parameters = kAdagradParameters,
                                         .defaults = {.lr = 1e-2, .eps = 1e-10},
                                         .states = adagrad_states};

}  // namespace ftrun::optimizers
