#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace ftrun {

/// Returns the number of rounds of a test with random cases: all of them, but under sanitizers only
/// the first sixth. The build without sanitizers compares the results of all rounds; sanitizers
/// find errors in fewer.
constexpr int sweep_rounds(int rounds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return std::max(rounds / 6, 1);
#else
  return rounds;
#endif
}

/// Returns the stride with which a test takes one in `every` cases of an ordered list: under
/// sanitizers it is six times as large.
constexpr std::size_t sweep_stride(std::size_t every) {
  return every * static_cast<std::size_t>(sweep_rounds(6) == 6 ? 1 : 6);
}

/// Returns the number in an environment variable; `otherwise` if it is not set.
inline uint64_t sweep_setting(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Returns the seed of a test with random cases. FTRUN_SWEEP_SEED=N adds N, which draws other
/// cases.
inline uint64_t sweep_seed(uint64_t seed) {
  return seed + sweep_setting("FTRUN_SWEEP_SEED", 0);
}

/// Returns the number of random cases of a test: sweep_rounds(), times FTRUN_SWEEP_TIMES.
inline int sweep_draws(int rounds) {
  return sweep_rounds(rounds) * static_cast<int>(sweep_setting("FTRUN_SWEEP_TIMES", 1));
}

/// Returns whether sweeps run all of their cases, so that totals can be checked.
constexpr bool sweeps_all() {
  return sweep_rounds(6) == 6;
}

}  // namespace ftrun
