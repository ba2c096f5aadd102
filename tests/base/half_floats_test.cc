#include "base/half_floats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("every BF16 value survives the conversion to F32 and back") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = f32_from_bf16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      REQUIRE(bf16_from_f32(value) == 0x7fc0);
    } else {
      REQUIRE(bf16_from_f32(value) == bits);
    }
  }
}

TEST_CASE("F16 is read exactly, for every value") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int sign = (bits >> 15) != 0 ? -1 : 1;
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double fraction = (bits & 1023) / 1024.0;
    const float value = f32_from_f16(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      REQUIRE((fraction == 0 ? std::isinf(value) : std::isnan(value)));
      REQUIRE(std::signbit(value) == (sign < 0));
    } else {
      const double expected =
          exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
      REQUIRE(static_cast<double>(value) == sign * expected);
    }
  }
}

TEST_CASE("F32 rounds to the nearest BF16, ties to even") {
  const float one = 1.0F;
  const float step = 1.0F / 128;
  REQUIRE(bf16_from_f32(one + step / 2) == 0x3f80);      // tie: down to even
  REQUIRE(bf16_from_f32(one + step * 3 / 2) == 0x3f82);  // tie: up to even
  REQUIRE(bf16_from_f32(std::nextafter(one + step / 2, 2.0F)) == 0x3f81);
  REQUIRE(bf16_from_f32(std::numeric_limits<float>::max()) == 0x7f80);
  REQUIRE(bf16_from_f32(-std::numeric_limits<float>::infinity()) == 0xff80);
  REQUIRE(bf16_from_f32(-0.0F) == 0x8000);
  std::mt19937 random(3);
  for (int i = 0; i < 200'000; ++i) {
    const uint32_t bits = random();
    const float value = std::bit_cast<float>(bits);
    if (!std::isfinite(value)) continue;
    const float rounded = f32_from_bf16(bf16_from_f32(value));
    const float below = f32_from_bf16(static_cast<uint16_t>(bits >> 16));
    const float above = f32_from_bf16(static_cast<uint16_t>((bits >> 16) + 1));
    if (!std::isfinite(above)) continue;
    const double down = std::abs(static_cast<double>(value) - below);
    const double up = std::abs(static_cast<double>(above) - value);
    REQUIRE(std::abs(static_cast<double>(rounded) - value) == std::min(down, up));
  }
}

TEST_CASE("every F16 value survives the conversion to F32 and back") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = f32_from_f16(static_cast<uint16_t>(bits));
    REQUIRE(f16_from_f32(value) == (std::isnan(value) ? (bits & 0x8000) | 0x7e00 : bits));
  }
}

TEST_CASE("F32 rounds to the nearest F16, ties to even") {
  REQUIRE(f16_from_f32(1 + 0x1p-11F) == 0x3c00);      // tie: down to even
  REQUIRE(f16_from_f32(1 + 3 * 0x1p-11F) == 0x3c02);  // tie: up to even
  REQUIRE(f16_from_f32(std::nextafter(1 + 0x1p-11F, 2.0F)) == 0x3c01);
  REQUIRE(f16_from_f32(std::nextafter(65520.0F, 0.0F)) == 0x7bff);
  REQUIRE(f16_from_f32(65520) == 0x7c00);
  REQUIRE(f16_from_f32(-std::numeric_limits<float>::max()) == 0xfc00);
  REQUIRE(f16_from_f32(-std::numeric_limits<float>::infinity()) == 0xfc00);
  REQUIRE(f16_from_f32(-0.0F) == 0x8000);
  REQUIRE(f16_from_f32(0x1p-25F) == 0);  // tie between 0 and the smallest subnormal number
  REQUIRE(f16_from_f32(std::nextafter(0x1p-25F, 1.0F)) == 1);
  REQUIRE(f16_from_f32(std::numeric_limits<float>::denorm_min()) == 0);
  // The result is compared with the two values around it.
  std::mt19937 random(4);
  for (int i = 0; i < 200'000; ++i) {
    const float value = std::ldexp(1 + static_cast<float>(random() >> 8) * 0x1p-24F,
                                   static_cast<int>(random() % 42) - 26);
    if (value >= 65504) continue;
    const uint16_t rounded = f16_from_f32(value);
    const double away = std::abs(static_cast<double>(f32_from_f16(rounded)) - value);
    REQUIRE(away <= std::abs(static_cast<double>(f32_from_f16(static_cast<uint16_t>(rounded + 1))) -
                             value));
    if (rounded > 0)
      REQUIRE(
          away <=
          std::abs(static_cast<double>(f32_from_f16(static_cast<uint16_t>(rounded - 1))) - value));
  }
}

}  // namespace
}  // namespace ftrun
