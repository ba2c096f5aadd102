#include "program/optimizer_state_specs.h"

#include <span>

#include "base/error.h"
#include "optimizers/max_states.h"
#include "optimizers/optimizers.h"
#include "partition/units.h"

namespace ftrun {

static_assert(3 * kMaxOptimizerStates <= static_cast<size_t>(kMaxStateBuffers),
              "each state has a buffer for numbers, one for codes and one for their scales");

std::vector<OptimizerStateSpec> list_optimizer_state_specs(const Config& config) {
  const bool narrow = config.bf16.enabled && config.bf16.bf16_optimizer_states;
  const std::span<const OptimizerStateTraits> states = optimizer_states(config.optimizer);
  std::vector<OptimizerStateSpec> specs;
  for (const OptimizerStateTraits& state : states)
    specs.push_back({.dtype = narrow ? DType::kBF16 : DType::kF32,
                     .initial_value = state.initial_value == nullptr
                                          ? 0.0
                                          : config.optimizer.*state.initial_value,
                     .name = state.name});
  if (!optimizer_traits(config.optimizer.type).has_8bit_states) return specs;
  for (const OptimizerStateTraits& state : states)
    specs.push_back({.dtype = DType::kU8, .is_8bit = true, .name = state.name});
  for (const OptimizerStateTraits& state : states)
    specs.push_back({.dtype = DType::kF32,
                     .is_8bit = true,
                     .block = kTensorBlock,
                     .name = cat(state.name, "_absmax")});
  return specs;
}

}  // namespace ftrun
