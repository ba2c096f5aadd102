#include "program/kept_states.h"

#include <span>

#include "base/error.h"
#include "optimizers/max_states.h"
#include "optimizers/optimizers.h"
#include "partition/units.h"

namespace ftrun {

static_assert(3 * kMaxOptimizerStates <= static_cast<size_t>(kMaxStateBuffers),
              "each state has a buffer for numbers, one for codes and one for their scales");

std::vector<KeptState> kept_states(const Config& config) {
  const bool narrow = config.bf16.enabled && config.bf16.bf16_optimizer_states;
  const std::span<const OptimizerState> states = optimizer_states(config.optimizer);
  std::vector<KeptState> kept;
  for (const OptimizerState& state : states)
    kept.push_back({.dtype = narrow ? DType::kBF16 : DType::kF32,
                    .first = state.first == nullptr ? 0.0 : config.optimizer.*state.first,
                    .name = state.name});
  if (!optimizer_of(config.optimizer.type).has_8bit_states) return kept;
  for (const OptimizerState& state : states)
    kept.push_back({.dtype = DType::kU8, .is_8bit = true, .name = state.name});
  for (const OptimizerState& state : states)
    kept.push_back({.dtype = DType::kF32,
                    .is_8bit = true,
                    .block = kTensorBlock,
                    .name = cat(state.name, "_absmax")});
  return kept;
}

}  // namespace ftrun
