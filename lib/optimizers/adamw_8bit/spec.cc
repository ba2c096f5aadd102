#include "optimizers/entries.h"

// AdamW as in bitsandbytes' AdamW8bit. Its states are two moments of each element, which are 8-bit
// codes in large tensors.

namespace ftrun::optimizers {
namespace {

using namespace hyperparameters;

constexpr std::string_view kAdamW8bitAliases[]{"adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"};
constexpr Hyperparameter kAdamW8bitParameters[]{
    kLr,
    kBetas,
    kEps,
    kWeightDecay,
    {"fp32_embeddings",
     "States of embeddings in fp32, as Hugging Face's Trainer keeps them; true where the type has "
     "a name of Hugging Face's.",
     &OptimizerConfig::fp32_embeddings},
    {"min_8bit_size",
     "Elements of the smallest tensors whose states are 8-bit codes; those of smaller ones are "
     "fp32.",
     &OptimizerConfig::min_8bit_size, 0}};
constexpr OptimizerStateTraits k8bitMoments[]{{"exp_avg"}, {"exp_avg_sq"}};

std::span<const OptimizerStateTraits> adamw_8bit_states(const OptimizerConfig&) {
  return k8bitMoments;
}

}  // namespace

constinit const OptimizerTraits kAdamW8bit{.aliases = kAdamW8bitAliases,
                                           .parameters = kAdamW8bitParameters,
                                           .states = adamw_8bit_states,
                                           .has_8bit_states = true,
                                           .alias_sets = "fp32_embeddings"};

}  // namespace ftrun::optimizers
