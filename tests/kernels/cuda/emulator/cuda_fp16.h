#pragma once

#include <vector>

#include "cuda_runtime.h"

struct __half {
  uint16_t bits;
};
struct __half2 {
  __half x, y;
};

/// All numbers: without F16C each conversion is a call.
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
inline float __half2float(__half x) { return emulated_halves()[x.bits]; }

/// To nearest, ties to even.
inline __half __float2half_rn(float x) {
  const auto value = static_cast<_Float16>(x);
  __half half;
  std::memcpy(&half.bits, &value, sizeof value);
  return half;
}

inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
