#pragma once

#include <vector>

#include "cuda_runtime.h"

struct __half {
  uint16_t bits;
};
struct __half2 {
  __half x, y;
};

/// Returns a table of all fp16 numbers, because without F16C each conversion would be a library
/// call.
inline const std::vector<float>& emulated_halves() {
  static const std::vector<float> all = [] {
    std::vector<float> numbers(1 << 16);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto bits = static_cast<uint16_t>(i);
      _Float16 value;
      std::memcpy(&value, &bits, sizeof value);
      numbers[i] = static_cast<float>(value);
    }
    return numbers;
  }();
  return all;
}
inline float __half2float(__half x) {
  return emulated_halves()[x.bits];
}

/// Rounds to nearest, ties to even.
inline __half __float2half_rn(float x) {
  constexpr uint32_t kMinNormal = 0x38800000U, kInfinite = 0x477FF000U;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000U, size = bits & 0x7FFFFFFFU;
  if (std::isnan(x)) return {0x7FFF};
  if (size >= kInfinite) return {static_cast<uint16_t>(sign | 0x7C00U)};
  if (size < kMinNormal)
    return {static_cast<uint16_t>(
        sign | static_cast<uint32_t>(std::nearbyint(std::abs(x) * 16777216.0F)))};
  return {static_cast<uint16_t>(sign | (size + 0xFFFU + (size >> 13 & 1U) - 0x38000000U) >> 13)};
}

inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
