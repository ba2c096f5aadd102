#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

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

/// Returns an environment variable's number; `otherwise` if it is not set.
inline uint64_t sweep_setting(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Returns the seed of a test that draws its cases. FTRUN_SWEEP_SEED=N adds N, which draws others.
inline uint64_t sweep_seed(uint64_t seed) {
  return seed + sweep_setting("FTRUN_SWEEP_SEED", 0);
}

/// Returns how many cases such a test draws: sweep_rounds(), times FTRUN_SWEEP_TIMES.
inline int sweep_draws(int rounds) {
  return sweep_rounds(rounds) * static_cast<int>(sweep_setting("FTRUN_SWEEP_TIMES", 1));
}

/// Returns whether a sweep has all of its cases, so that what it found can be compared with the
/// whole.
constexpr bool sweeps_all() {
  return sweep_rounds(6) == 6;
}

}  // namespace ftrun
