#pragma once

#include <cstddef>

namespace ftrun {

/// States of an element that an optimizer updates at most.
inline constexpr size_t kMostOptimizerStates = 2;

}  // namespace ftrun
