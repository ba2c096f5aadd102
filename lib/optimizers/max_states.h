#pragma once

#include <cstddef>

namespace ftrun {

/// The largest number of states that an optimizer keeps for each element. The kernels and the
/// rounding noise have code for each state separately: to raise the number, change the places whose
/// static_asserts then fail.
inline constexpr size_t kMaxOptimizerStates = 2;

}  // namespace ftrun
