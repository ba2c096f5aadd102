#pragma once

#include "cuda_runtime.h"

struct __half {
  uint16_t bits;
};
struct __half2 {
  __half x, y;
};

inline float __half2float(__half x) {
  _Float16 value;
  std::memcpy(&value, &x.bits, sizeof value);
  return static_cast<float>(value);
}

/// To nearest, ties to even.
inline __half __float2half_rn(float x) {
  const auto value = static_cast<_Float16>(x);
  __half half;
  std::memcpy(&half.bits, &value, sizeof value);
  return half;
}

inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
