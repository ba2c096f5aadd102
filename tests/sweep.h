#pragma once

#include <algorithm>
#include <cstddef>

namespace ftrun {

/// Returns the rounds of a test whose cases are drawn at random: all of them, and under sanitizers
/// the first sixth. The build without them compares the results of all; sanitizers find their
/// faults in fewer.
constexpr int sweep_rounds(int rounds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return std::max(rounds / 6, 1);
#else
  return rounds;
#endif
}

/// Returns the stride at which one case in `every` is taken of an ordered list: under sanitizers
/// one in six times as many.
constexpr std::size_t sweep_stride(std::size_t every) {
  return every * static_cast<std::size_t>(sweep_rounds(6) == 6 ? 1 : 6);
}

}  // namespace ftrun
