#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace ftrun {

// Conversions of a 16-bit float (IEEE 754 binary16, and bfloat16) to fp32 and back, and of an 8-bit
// float to fp32, for any CPU.

/// Converts exactly, bit for bit.
inline float f32_from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// Converts exactly, subnormals and infinities included; a NaN keeps its sign and payload and
/// becomes quiet.
inline float f32_from_f16(uint16_t bits) {
  // The shifted exponent is too small by 127 - 15; the multiplication below corrects it and turns
  // subnormals into normal numbers. Infinity and NaN keep the largest exponent.
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffU) << 13;
  constexpr uint32_t kInfinity = 0x0f800000U, kQuiet = 0x00400000U;
  if (magnitude > kInfinity) return std::bit_cast<float>(sign | magnitude | 0x7f800000U | kQuiet);
  if (magnitude == kInfinity) return std::bit_cast<float>(sign | 0x7f800000U);
  return std::bit_cast<float>(sign |
                              std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F));
}

/// Rounds to the nearest, ties to even; any NaN becomes 0x7fc0.
inline uint16_t bf16_from_f32(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// Rounds to the nearest, ties to even, so that 65520 and above become infinity; a NaN becomes the
/// quiet NaN of its sign without payload.
inline uint16_t f16_from_f32(float value) {
  constexpr uint32_t kInfinity = 0x7f800000U, kTooLarge = 0x47800000U /* 2^16 */,
                     kMinNormal = 0x38800000U /* 2^-14 */;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U, magnitude = bits & 0x7fffffffU;
  uint32_t half = 0;
  if (magnitude > kInfinity) {
    half = 0x7e00U;
  } else if (magnitude >= kTooLarge) {
    half = 0x7c00U;
  } else if (magnitude < kMinNormal) {
    // The last bit of 0.5 is 2^-24, the same as of a subnormal fp16 number, so the sum rounds
    // there.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
           std::bit_cast<uint32_t>(0.5F);
  } else {
    const uint32_t rebased = magnitude - ((127U - 15U) << 23);
    half = (rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

/// Converts an 8-bit float of 4 exponent and 3 mantissa bits without infinities (OCP E4M3,
/// PyTorch's float8_e4m3fn), exactly; 0x7f and 0xff are NaN.
inline float f32_from_e4m3(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80U) << 24;
  const uint32_t magnitude = bits & 0x7fU;
  if (magnitude == 0x7fU) return std::bit_cast<float>(sign | 0x7fc00000U);
  // The exponent is too small by 127 - 7; the multiplication corrects it, as in f32_from_f16().
  return std::bit_cast<float>(
      sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 20) * 0x1p120F));
}

}  // namespace ftrun
