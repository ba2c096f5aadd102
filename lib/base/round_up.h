#pragma once

#include <cstdint>

namespace ftrun {

/// Returns the smallest multiple of `multiple` that is not below `value` (>= 0).
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Returns the smallest whole number that is not below a / b (a >= 0, b > 0).
constexpr int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace ftrun
