#include "optimizers/entries.h"

// Lion. Its state is one moment of each element, and all elements change by steps of the same size.

namespace ftrun::optimizers {
namespace {

using namespace parameters;

constexpr std::string_view kLionAliases[]{"lion_32bit"};
constexpr OptimizerParameter kLionParameters[]{kLr, kBetas, kWeightDecay};
constexpr OptimizerState kLionMoment[]{{"exp_avg"}};

std::span<const OptimizerState> lion_moment(const OptimizerConfig&) {
  return kLionMoment;
}

}  // namespace

constinit const Optimizer kLion{
    .aliases = kLionAliases, .parameters = kLionParameters, .states = lion_moment};

}  // namespace ftrun::optimizers
