#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "comm/half_float_conversions.h"
#include "comm/reduce.h"

#include <catch2/catch.hpp>

using namespace ftrun;

namespace {

/// Returns all 2^16 bit patterns of 16 bits.
std::vector<uint16_t> every_pattern() {
  std::vector<uint16_t> all;
  for (uint32_t bits = 0; bits < 65536; ++bits) all.push_back(static_cast<uint16_t>(bits));
  return all;
}

/// Returns fp32 numbers that cover the conversion to 16 bits: all values of the upper 19 bits, with
/// lower bits at, next to and between the ties.
std::vector<float> many_floats() {
  std::vector<float> all;
  for (uint32_t upper = 0; upper < 1U << 19; ++upper)
    for (const uint32_t lower : {0U, 1U, 0x0FFFU, 0x1000U, 0x1001U, 0x1FFFU})
      all.push_back(std::bit_cast<float>(upper << 13 | lower));
  return all;
}

template <typename From, typename To>
std::vector<To> convert_all(void (*convert)(const From*, To*, int64_t),
                            const std::vector<From>& in) {
  std::vector<To> out(in.size());
  convert(in.data(), out.data(), static_cast<int64_t>(in.size()));
  return out;
}

template <typename T>
bool equal_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

uint16_t f16_bits(float value) {
  uint16_t bits = 0;
  scalar_half_float_conversions().narrow_f16(&value, &bits, 1);
  return bits;
}

/// Returns the sum of two ranks' numbers, converted by PyTorch, element by element.
template <typename T>
std::vector<T> naive_sum(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> out;
  for (size_t i = 0; i < a.size(); ++i)
    out.push_back(static_cast<T>(static_cast<float>(a[i]) + static_cast<float>(b[i])));
  return out;
}

/// Checks sums of all patterns of 16 bits (rank 0) and `other` (rank 1).
template <typename T>
void check_sum(DType dtype, uint16_t other) {
  std::vector<T> a, b;
  for (const uint16_t bits : every_pattern()) {
    a.push_back(T(bits, T::from_bits()));
    b.push_back(T(other, T::from_bits()));
  }
  std::vector<T> out(a.size());
  const void* inputs[] = {a.data(), b.data()};
  reduce_in_order(dtype, ReduceOp::kSum, inputs, 2, out.data(), static_cast<int64_t>(out.size()));
  CAPTURE(dtype_name(dtype), other);
  REQUIRE(equal_bits(out, naive_sum(a, b)));
}

}  // namespace

TEST_CASE("every CPU converts 16-bit floats to the same bits") {
  const HalfFloatConversions& fast = half_float_conversions();
  const HalfFloatConversions& plain = scalar_half_float_conversions();
  const std::vector<uint16_t> patterns = every_pattern();
  REQUIRE(
      equal_bits(convert_all(fast.widen_f16, patterns), convert_all(plain.widen_f16, patterns)));
  REQUIRE(
      equal_bits(convert_all(fast.widen_bf16, patterns), convert_all(plain.widen_bf16, patterns)));
  const std::vector<float> floats = many_floats();
  REQUIRE(equal_bits(convert_all(fast.narrow_f16, floats), convert_all(plain.narrow_f16, floats)));
  REQUIRE(
      equal_bits(convert_all(fast.narrow_bf16, floats), convert_all(plain.narrow_bf16, floats)));
}

TEST_CASE("ranges of any length and alignment are converted completely, and nothing outside them") {
  const std::vector<uint16_t> patterns = every_pattern();
  const HalfFloatConversions& fast = half_float_conversions();
  for (int64_t count = 0; count < 40; ++count) {
    const uint16_t* from = patterns.data() + 0x3A01 + count;
    std::vector<float> wide(static_cast<size_t>(count) + 1, -7);
    fast.widen_f16(from, wide.data(), count);
    REQUIRE(wide.back() == -7);
    std::vector<uint16_t> back(static_cast<size_t>(count) + 1, 7);
    fast.narrow_f16(wide.data(), back.data(), count);
    REQUIRE(back.back() == 7);
    REQUIRE(std::memcmp(back.data(), from, static_cast<size_t>(count) * 2) == 0);
    fast.widen_bf16(from, wide.data(), count);
    fast.narrow_bf16(wide.data(), back.data(), count);
    REQUIRE(wide.back() == -7);
    REQUIRE(back.back() == 7);
    REQUIRE(std::memcmp(back.data(), from, static_cast<size_t>(count) * 2) == 0);
  }
}

TEST_CASE("fp16 rounds to nearest even, overflows to infinity and keeps a NaN's sign") {
  REQUIRE(f16_bits(65504.0F) == 0x7BFF);
  REQUIRE(f16_bits(65519.99F) == 0x7BFF);
  REQUIRE(f16_bits(65520.0F) == 0x7C00);
  REQUIRE(f16_bits(1 + 0x1p-11F) == 0x3C00);
  REQUIRE(f16_bits(1 + 3 * 0x1p-11F) == 0x3C02);
  REQUIRE(f16_bits(0x1p-24F) == 0x0001);
  REQUIRE(f16_bits(0x1p-25F) == 0x0000);
  REQUIRE(f16_bits(3 * 0x1p-25F) == 0x0002);
  REQUIRE(f16_bits(-std::numeric_limits<float>::quiet_NaN()) == 0xFE00);
  REQUIRE(f16_bits(std::numeric_limits<float>::quiet_NaN()) == 0x7E00);
}

TEST_CASE("sums of 16-bit floats are those of PyTorch's conversions, bit for bit") {
  // The values are zeros, denormals, the largest numbers, both infinities, and numbers that make
  // ties.
  for (const uint16_t other : {0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0x3C01, 0x9001,
                               0x7BFF, 0xFBFF, 0x7C00, 0xFC00}) {
    check_sum<c10::Half>(DType::kF16, other);
    check_sum<c10::BFloat16>(DType::kBF16, other);
  }
}

TEST_CASE("sums of more than two ranks are added in rank order and rounded once, in place or not") {
  constexpr int64_t kCount = 2'500;
  std::vector<c10::Half> a, b, c, expected;
  for (int64_t i = 0; i < kCount; ++i) {
    a.emplace_back(static_cast<float>(i % 613) * 0.37F);
    b.emplace_back(static_cast<float>(i % 97) * -2.01F);
    c.emplace_back(0x1p-12F * static_cast<float>(i));
    expected.emplace_back(static_cast<float>(a.back()) + static_cast<float>(b.back()) +
                          static_cast<float>(c.back()));
  }
  const void* inputs[] = {a.data(), b.data(), c.data()};
  std::vector<c10::Half> out(a.size());
  reduce_in_order(DType::kF16, ReduceOp::kSum, inputs, 3, out.data(), kCount);
  REQUIRE(equal_bits(out, expected));
  reduce_in_order(DType::kF16, ReduceOp::kSum, inputs, 3, b.data(), kCount);
  REQUIRE(equal_bits(b, expected));
}
