#pragma once

#include <algorithm>

namespace ftrun {

/// Rounds of a test whose cases are drawn at random: all of them, and under sanitizers the first quarter. The build without
/// them compares the results of all; what sanitizers look for shows in fewer.
constexpr int sweep_rounds(int rounds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return std::max(rounds / 4, 1);
#else
  return rounds;
#endif
}

}  // namespace ftrun
