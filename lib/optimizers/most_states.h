#pragma once

#include <cstddef>

namespace ftrun {

/// The most states of an element that an optimizer updates.
inline constexpr size_t kMostOptimizerStates = 2;

}  // namespace ftrun
