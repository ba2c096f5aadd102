#pragma once

#include <cstddef>

namespace ftrun {

/// The most states of an element that an optimizer updates. The kernels and the rounding noise name
/// each of them: to raise it, change what the static_asserts point at.
inline constexpr size_t kMaxOptimizerStates = 2;

}  // namespace ftrun
