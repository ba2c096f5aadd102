#include "optimizers/entries.h"

// Adam and AdamW. Their states are two moments of each element.

namespace ftrun::optimizers {
namespace {

using namespace parameters;

constexpr std::string_view kAdamWAliases[]{"adamw_torch", "adamw_torch_fused", "adamw_hf",
                                           "adamw_apex_fused"};
constexpr OptimizerParameter kAdamParameters[]{
    kLr,
    kBetas,
    kEps,
    kWeightDecay,
    kBiasCorrection,
    {"adam_w_mode", "Decoupled decay for type Adam; no effect for AdamW.",
     &OptimizerConfig::adam_w_mode}};
constexpr OptimizerState kMoments[]{{"exp_avg"}, {"exp_avg_sq"}};

std::span<const OptimizerState> moments(const OptimizerConfig&) {
  return kMoments;
}

}  // namespace

constinit const Optimizer kAdamW{
    .aliases = kAdamWAliases, .parameters = kAdamParameters, .states = moments};
constinit const Optimizer kAdam{.parameters = kAdamParameters, .states = moments};

}  // namespace ftrun::optimizers
