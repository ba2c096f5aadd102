#include "optimizers/entries.h"

// Lion. Its state is one moment of each element, and all elements change by steps of the same size.

namespace ftrun::optimizers {
namespace {

using namespace hyperparameters;

constexpr std::string_view kLionAliases[]{"lion_32bit"};
constexpr Hyperparameter kLionParameters[]{kLr, kBetas, kWeightDecay};
constexpr OptimizerStateTraits kLionMoment[]{{"exp_avg"}};

std::span<const OptimizerStateTraits> lion_states(const OptimizerConfig&) {
  return kLionMoment;
}

}  // namespace

constinit const OptimizerTraits kLion{
    .aliases = kLionAliases, .parameters = kLionParameters, .states = lion_states};

}  // namespace ftrun::optimizers
