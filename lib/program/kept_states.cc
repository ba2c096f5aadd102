#include "program/kept_states.h"

#include <span>

#include "optimizers/optimizers.h"
#include "partition/units.h"

namespace ftrun {

std::vector<KeptState> kept_states(const Config& config) {
  const bool narrow = config.bf16.enabled && config.bf16.bf16_optimizer_states;
  const std::span<const OptimizerState> states = optimizer_states(config.optimizer);
  std::vector<KeptState> kept;
  for (const OptimizerState& state : states)
    kept.push_back({narrow ? DType::kBF16 : DType::kF32,
                    state.first == nullptr ? 0.0 : config.optimizer.*state.first});
  if (!optimizer_of(config.optimizer.type).coded) return kept;
  for (size_t s = 0; s < states.size(); ++s) kept.push_back({.dtype = DType::kU8, .coded = true});
  for (size_t s = 0; s < states.size(); ++s)
    kept.push_back({.dtype = DType::kF32, .coded = true, .block = kTensorBlock});
  return kept;
}

}  // namespace ftrun
