#pragma once

#include <cstdint>

#include "base/mix_bits.h"
#include "kernels/dropout_mask.h"

namespace ftrun {

/// The number of elements whose random numbers come from the same keys.
inline constexpr int64_t kElementsPerNoiseKey = int64_t{1} << 16;

/// RoundingNoise holds three 16-bit random numbers of an element, which are pairwise independent:
/// the two halves of `first` (the first moment uses the lower half, the second moment the upper
/// one), and the lower half of `second` (the parameter).
struct RoundingNoise {
  uint32_t first = 0;
  uint32_t second = 0;
};

/// Returns the keys of a block in a step with this StepScalars::rounding_key.
FTRUN_HOST_DEVICE inline DropoutKeys rounding_keys(uint64_t rounding_key, int64_t block) {
  const uint64_t keys = splitmix64(rounding_key ^ splitmix64(static_cast<uint64_t>(block)));
  return {static_cast<uint32_t>(keys), static_cast<uint32_t>(keys >> 32)};
}

/// Returns the random numbers of an element of a block, as the CPU's vector kernels
/// compute them (kernels/cpu/flat_kernels.inc).
FTRUN_HOST_DEVICE inline RoundingNoise rounding_noise(const DropoutKeys& keys, uint32_t element) {
  const uint32_t first = dropout_bits(keys, element);
  return {first, (first * 0x9e3779b1U) >> 16};
}

}  // namespace ftrun
