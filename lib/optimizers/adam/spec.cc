#include "optimizers/entries.h"

// Adam and AdamW. Their states are two moments of each element.

namespace ftrun::optimizers {
namespace {

using namespace hyperparameters;

constexpr std::string_view kAdamWAliases[]{"adamw_torch", "adamw_torch_fused", "adamw_hf",
                                           "adamw_apex_fused"};
constexpr Hyperparameter kAdamParameters[]{
    kLr,
    kBetas,
    kEps,
    kWeightDecay,
    kBiasCorrection,
    {"adam_w_mode", "Decoupled decay for type Adam; no effect for AdamW.",
     &OptimizerConfig::adam_w_mode}};
constexpr OptimizerStateTraits kMoments[]{{"exp_avg"}, {"exp_avg_sq"}};

std::span<const OptimizerStateTraits> adam_states(const OptimizerConfig&) {
  return kMoments;
}

}  // namespace

constinit const OptimizerTraits kAdamW{
    .aliases = kAdamWAliases, .parameters = kAdamParameters, .states = adam_states};
constinit const OptimizerTraits kAdam{.parameters = kAdamParameters, .states = adam_states};

}  // namespace ftrun::optimizers
