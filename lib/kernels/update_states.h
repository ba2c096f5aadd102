#pragma once

#include "base/error.h"
#include "kernels/kernels.h"
#include "optimizers/optimizers.h"

namespace ftrun {

/// Returns the update with only the states that the optimizer keeps; fails a check where one of
/// them is not given.
inline FlatUpdate with_states_of(FlatUpdate update, const OptimizerConfig& config) {
  const size_t kept = optimizer_states(config).size();
  for (size_t s = 0; s < kept; ++s)
    require(update.states[s] != nullptr, "an optimizer's step needs its states");
  for (size_t s = kept; s < update.states.size(); ++s) update.states[s] = nullptr;
  const bool is_8bit = update.state_dtype == DType::kU8;
  require(!is_8bit || optimizer_traits(config.type).has_8bit_states,
          "only an optimizer whose states may be codes has them");
  for (size_t s = 0; s < kept; ++s)
    require(
        (update.scales[s] != nullptr) == is_8bit && (update.new_scales[s] == nullptr || is_8bit),
        "codes have scales, and numbers have none");
  return update;
}

}  // namespace ftrun
