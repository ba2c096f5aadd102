// These tests check conversions and sums of flat ranges.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"
#include "kernels/copy.h"
#include "operation_runner.h"
#include "optimizers/optimizer_config.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

const std::vector<DType> kTypes{DType::kF32, DType::kBF16, DType::kF16};
const std::vector<DType> kFlatNarrow{DType::kBF16, DType::kF16};

/// A flat range of numbers in one dtype.
class FlatRange {
 public:
  FlatRange(DType dtype, size_t count)
      : dtype_(dtype), bytes_(count * static_cast<size_t>(dtype_bytes(dtype))) {}
  FlatRange(DType dtype, const std::vector<double>& values) : FlatRange(dtype, values.size()) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double v = rounded(values[i], dtype);
      const uint16_t bits = is_narrow(dtype) ? bits_of(v, dtype) : uint16_t{0};
      const auto wide = static_cast<float>(v);
      std::memcpy(at(i), is_narrow(dtype) ? static_cast<const void*>(&bits) : &wide, size());
    }
  }
  void* data() { return bytes_.data(); }
  double operator[](size_t i) {
    if (is_narrow(dtype_)) {
      uint16_t bits;
      std::memcpy(&bits, at(i), sizeof bits);
      return number_of(bits, dtype_);
    }
    float v;
    std::memcpy(&v, at(i), sizeof v);
    return static_cast<double>(v);
  }

 private:
  size_t size() const { return static_cast<size_t>(dtype_bytes(dtype_)); }
  std::byte* at(size_t i) { return bytes_.data() + i * size(); }

  DType dtype_;
  std::vector<std::byte> bytes_;
};

/// Returns numbers of all magnitudes that fp32 has. Half of them lie exactly between two numbers of
/// the 16-bit dtype `towards`, so that rounding has to break a tie.
std::vector<double> numbers_with_ties(int64_t count, DType towards, uint64_t seed) {
  const Array mantissas = random_array({count}, seed), exponents = random_array({count}, seed + 1);
  std::vector<double> values;
  for (size_t i = 0; i < mantissas.data.size(); ++i) {
    double v = mantissas.data[i] * std::ldexp(1.0, static_cast<int>(exponents.data[i] * 40.0));
    const double down = rounded(v, towards);
    if (i % 2 == 0 && std::isfinite(down)) {
      v = down + unit_roundoff(towards) * std::ldexp(1.0, std::ilogb(down == 0.0 ? 1.0 : down));
    }
    values.push_back(rounded(v, DType::kF32));
  }
  return values;
}

TEST_CASE("conversions round to nearest, ties to even, between all pairs of dtypes") {
  run_once_per_entry([] {
    for (const DType from : kTypes)
      for (const DType to : kTypes)
        for (const int64_t count : {1, 7, 16, 1003, 200003}) {
          CAPTURE(dtype_name(from), dtype_name(to), count);
          const std::vector<double> values =
              numbers_with_ties(count, is_narrow(to) ? to : DType::kBF16, 3);
          FlatRange source(from, values), target(to, static_cast<size_t>(count));
          convert(source.data(), from, target.data(), to, count);
          int64_t wrong = 0;
          for (size_t i = 0; i < values.size(); ++i) wrong += target[i] != rounded(source[i], to);
          REQUIRE(wrong == 0);
        }
  });
}

TEST_CASE("every 16-bit number survives fp32, and NaN stays NaN") {
  run_once_per_entry([] {
    for (const DType dtype : kFlatNarrow) {
      std::vector<uint16_t> all(1 << 16), back(1 << 16);
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
      std::vector<float> wide(1 << 16);
      convert(all.data(), dtype, wide.data(), DType::kF32, 1 << 16);
      convert(wide.data(), DType::kF32, back.data(), dtype, 1 << 16);
      int64_t wrong = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        const double number = number_of(all[i], dtype);
        if (std::isnan(number))
          wrong += !std::isnan(wide[i]) || !std::isnan(number_of(back[i], dtype));
        else
          wrong += static_cast<double>(wide[i]) != number || back[i] != all[i];
      }
      REQUIRE(wrong == 0);
    }
  });
}

TEST_CASE("a NaN with only low bits set, overflow and infinity are converted correctly") {
  run_once_per_entry([] {
    const std::vector<float> edges{std::bit_cast<float>(0x7F800001U),
                                   std::bit_cast<float>(0xFFFFFFFFU),
                                   INFINITY,
                                   -INFINITY,
                                   3.39e38F,
                                   -3.4028235e38F,
                                   65519.99F,
                                   65520.0F};
    std::vector<uint16_t> bf16(8), f16(8);
    convert(edges.data(), DType::kF32, bf16.data(), DType::kBF16, 8);
    convert(edges.data(), DType::kF32, f16.data(), DType::kF16, 8);
    const auto in_bf16 = [&](size_t i) { return number_of(bf16[i], DType::kBF16); };
    const auto in_f16 = [&](size_t i) { return number_of(f16[i], DType::kF16); };
    for (const size_t i : {0, 1}) REQUIRE((std::isnan(in_bf16(i)) && std::isnan(in_f16(i))));
    REQUIRE((in_bf16(2) == INFINITY && in_f16(2) == INFINITY));
    REQUIRE((in_bf16(3) == -INFINITY && in_f16(3) == -INFINITY));
    REQUIRE((std::isfinite(in_bf16(4)) && in_bf16(5) == -INFINITY));
    REQUIRE((in_f16(6) == 65504.0 && in_f16(7) == INFINITY));
  });
}

TEST_CASE("add_into adds in fp32 and rounds once, for all pairs of dtypes") {
  run_once_per_entry([] {
    for (const DType to : kTypes)
      for (const DType from : kTypes) {
        constexpr int64_t kCount = 100003;
        CAPTURE(dtype_name(to), dtype_name(from));
        FlatRange target(to, random_array({kCount}, 1).data),
            source(from, random_array({kCount}, 2).data);
        std::vector<double> expected;
        for (size_t i = 0; i < kCount; ++i)
          expected.push_back(
              rounded(static_cast<double>(static_cast<float>(target[i] + source[i])), to));
        add_into(target.data(), to, source.data(), from, kCount);
        int64_t wrong = 0;
        for (size_t i = 0; i < kCount; ++i) wrong += target[i] != expected[i];
        REQUIRE(wrong == 0);
      }
  });
}

TEST_CASE("the sum of squares of 16-bit numbers has the bits that the same numbers have in fp32") {
  run_once_per_entry([] {
    for (const DType dtype : kFlatNarrow)
      for (const int64_t count : {int64_t{0}, int64_t{5}, int64_t{32}, 3 * kGradientNormGroup + 77,
                                  100 * kGradientNormGroup}) {
        FlatRange narrow(dtype, random_array({count}, 5).data),
            wide(DType::kF32, static_cast<size_t>(count));
        convert(narrow.data(), dtype, wide.data(), DType::kF32, count);
        const double a = sum_of_squares(narrow.data(), dtype, count);
        const double b = sum_of_squares(wide.data(), DType::kF32, count);
        REQUIRE(std::memcmp(&a, &b, sizeof a) == 0);
        REQUIRE((a > 0.0) == (count > 0));
      }
  });
}

TEST_CASE("a streamed copy writes every byte of its source and none next to it") {
  for (const size_t bytes :
       {size_t{0}, size_t{2}, size_t{4}, size_t{510}, size_t{4096}, size_t{(1 << 20) + 6}})
    for (const size_t first : {size_t{0}, size_t{2}, size_t{4}, size_t{60}}) {
      INFO(bytes << " bytes from " << first);
      // The source has all bit patterns, including signaling NaNs.
      std::vector<uint8_t> from(bytes + 128), to(bytes + 128, 7);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 167 + (i >> 9));
      std::vector<uint8_t> expected = to;
      std::copy_n(from.begin() + 3, bytes, expected.begin() + static_cast<ptrdiff_t>(first));
      copy_streamed(std::vector<CopiedRange>{
          {to.data() + first, from.data() + 3, static_cast<int64_t>(bytes)}});
      REQUIRE(to == expected);
    }
}

TEST_CASE("a streamed copy of several ranges copies all of them, divided among threads") {
  std::vector<uint32_t> from(3'000'000), to(from.size(), 7);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint32_t>(i);
  std::vector<CopiedRange> ranges;
  std::vector<uint32_t> expected = to;
  for (const auto& [first, count] :
       {std::pair<size_t, size_t>{2'000'001, 999'998}, {5, 0}, {0, 3}, {100, 1'500'000}}) {
    ranges.push_back(
        {to.data() + first, from.data() + first, static_cast<int64_t>(count * sizeof(uint32_t))});
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(first), count,
                expected.begin() + static_cast<ptrdiff_t>(first));
  }
  copy_streamed(ranges);
  REQUIRE(to == expected);
}

TEST_CASE("dtypes that flat kernels do not know are refused by name") {
  std::vector<int64_t> memory(8);
  const auto message = [&](const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& e) {
      REQUIRE(e.code() == ExitCode::kUnsupported);
      return e.message();
    }
    return std::string("no error");
  };
  void* const p = memory.data();
  REQUIRE(message([&] { convert(p, DType::kI32, p, DType::kF32, 4); }) ==
          "the CPU kernels do not support conversion in I32");
  REQUIRE(message([&] { add_into(p, DType::kF64, p, DType::kF32, 4); }) ==
          "the CPU kernels do not support addition in F64");
  REQUIRE(message([&] { sum_of_squares(p, DType::kU8, 4); }) ==
          "the CPU kernels do not support gradients in U8");
  REQUIRE(message([&] {
            optimizer_update(
                {.parameters = p, .gradients = p, .states = {p, p}, .state_dtype = DType::kF16}, {},
                {});
          }) == "the optimizers keep no moments in F16");
  REQUIRE(message([&] {
            optimizer_update({.parameters = p, .parameter_dtype = DType::kF16, .gradients = p},
                             {.type = OptimizerType::kSgd}, {});
          }) == "the optimizers keep no parameters in F16");
}

}  // namespace
}  // namespace ftrun::testing
