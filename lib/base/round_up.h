#pragma once

#include <cstdint>

namespace ftrun {

/// The least multiple of `multiple` that is not below `value` (>= 0).
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace ftrun
