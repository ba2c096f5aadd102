#include "base/quantized_values.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "base/mix_bits.h"
#include "base/text.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using Type = QuantizationType;

/// Returns the FNV-1a hash of bytes.
uint64_t hash_of(const void* data, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (size_t i = 0; i < bytes; ++i)
    hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3ULL;
  return hash;
}

constexpr int64_t kRows = 96, kColumns = 640;

/// Returns a matrix of values that are exact in fp32 and become larger towards the end.
std::vector<float> growing_matrix() {
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((static_cast<double>(splitmix64(i) >> 40) - (1 << 23)) /
                                   (1 << 23) * 0x1p-5 * static_cast<double>(1 + i / 5000));
  return values;
}

struct QuantizedMatrix {
  QuantizedFormat format;
  QuantizationScales scales;
  std::vector<std::byte> records;

  QuantizedMatrix(const QuantizedFormat& how, const std::vector<float>& values, int64_t columns)
      : format(how), scales(how, static_cast<int64_t>(values.size()), columns) {
    scales.add(values);
    REQUIRE(scales.finish());
    records.resize(static_cast<size_t>(how.bytes(static_cast<int64_t>(values.size()))));
    quantize_values(how, scales, 0, values, 0, records.data());
  }

  std::vector<float> numbers(size_t count) const {
    std::vector<float> out(count);
    dequantize_values(format, records.data(), 0, out);
    return out;
  }
  /// Returns the bytes of the records from `offset` on.
  std::vector<std::byte> parts(int64_t offset, int64_t bytes) const {
    std::vector<std::byte> found;
    for (size_t at = 0; at < records.size(); at += static_cast<size_t>(format.record_bytes()))
      found.insert(found.end(), records.begin() + static_cast<int64_t>(at) + offset,
                   records.begin() + static_cast<int64_t>(at) + offset + bytes);
    return found;
  }
};

// The hashes are of the results of bitsandbytes 0.50.2 for these numbers. (Codes of scales are
// those of its kernel for all devices, which chooses the nearest code; its CPU kernel does not
// always do so.)
TEST_CASE(
    "nf4 codes, codes of scales and the numbers that they represent equal those of bitsandbytes") {
  const std::vector<float> values = growing_matrix();
  const QuantizedMatrix quantized({Type::kNf4, 64, true, false}, values, kColumns);
  const std::vector<std::byte> codes = quantized.parts(0, 128),
                               scale_codes = quantized.parts(128, 4);
  CHECK(hash_of(codes.data(), codes.size()) == 0xfbfccd60dbafa9f5ULL);
  CHECK(hash_of(scale_codes.data(), scale_codes.size()) == 0xa4e716ab51143e64ULL);
  CHECK(hash_of(dynamic_values().data(), sizeof(dynamic_values())) == 0xd677f22a96665bc4ULL);
  const std::vector<float> numbers = quantized.numbers(values.size());
  CHECK(hash_of(numbers.data(), numbers.size() * sizeof(float)) == 0xef4a28f5815661a5ULL);
}

TEST_CASE("nf4 packs the first element into the upper half of a byte") {
  std::vector<float> values(64);
  for (size_t i = 0; i < 64; ++i)
    values[i] = std::sin(0.7F * static_cast<float>(i)) * (0.1F + 2.9F / 63 * static_cast<float>(i));
  const QuantizedMatrix quantized({Type::kNf4, 64, false, false}, values, 64);
  std::string text;
  for (size_t i = 0; i < 32; ++i) {
    const auto byte = static_cast<unsigned>(quantized.records[i]);
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  CHECK(text == "77887765679a9864457abb953347bdc952238ced941138deea31028efea30029");
  float scale = 0;
  std::memcpy(&scale, quantized.records.data() + 128, sizeof scale);
  CHECK(scale == Approx(2.78775668).epsilon(1e-6));
}

TEST_CASE("int8 codes are the nearest ones of each row's scale, of weights in fp16") {
  const std::vector<float> values = growing_matrix();
  const QuantizedMatrix quantized({Type::kInt8}, values, kColumns);
  const std::vector<std::byte> codes = quantized.parts(0, 256);
  CHECK(hash_of(codes.data(), codes.size()) == 0x2268d87bd9589976ULL);
  const std::vector<float> numbers = quantized.numbers(values.size());
  for (int64_t row = 0; row < kRows; ++row) {
    float largest = 0, far = 0;
    for (int64_t i = row * kColumns; i < (row + 1) * kColumns; ++i) {
      largest = std::max(largest, std::abs(values[static_cast<size_t>(i)]));
      far =
          std::max(far, std::abs(values[static_cast<size_t>(i)] - numbers[static_cast<size_t>(i)]));
    }
    CAPTURE(row, largest);
    CHECK(far <= largest * (0.5 / 127 + 0x1p-11 + 1e-6));
    CHECK(far > largest * 0.3 / 127);
  }
}

TEST_CASE(
    "packing block by block gives the same records, and plain scales represent the same numbers") {
  const std::vector<float> values = growing_matrix();
  for (const QuantizedFormat& format :
       {QuantizedFormat{Type::kNf4, 64, true, false},
        QuantizedFormat{Type::kNf4, 128, false, false}, QuantizedFormat{Type::kInt8}}) {
    const QuantizedMatrix whole(format, values, kColumns);
    std::vector<std::byte> pieces(whole.records.size());
    for (int64_t at = 0; at < static_cast<int64_t>(values.size());) {
      const int64_t end = std::min<int64_t>(at + format.block * (1 + at / format.block % 4),
                                            (at / kColumns + 1) * kColumns);
      quantize_values(
          format, whole.scales, at,
          std::span(values).subspan(static_cast<size_t>(at), static_cast<size_t>(end - at)), at,
          pieces.data());
      at = end;
    }
    CHECK(pieces == whole.records);
    QuantizedFormat holding = format;
    holding.holds_scales = true;
    CHECK(QuantizedMatrix(holding, values, kColumns).numbers(values.size()) ==
          whole.numbers(values.size()));
    // The values begin in the middle of a record, at an odd element.
    std::vector<float> some(777);
    dequantize_values(format, whole.records.data(), 1001, some);
    const std::vector<float> all = whole.numbers(values.size());
    CHECK(std::equal(some.begin(), some.end(), all.begin() + 1001));
  }
}

TEST_CASE("a block of columns is quantized like the same part of the whole tensor") {
  const std::vector<float> values = growing_matrix();
  const QuantizedFormat format{Type::kNf4, 64, true, true};
  const QuantizedMatrix whole(format, values, kColumns);
  const std::vector<float> numbers = whole.numbers(values.size());
  constexpr int64_t kFirst = 192, kWidth = 320;
  std::vector<std::byte> records(static_cast<size_t>(format.bytes(kRows * kWidth)));
  for (int64_t row = 0; row < kRows; ++row)
    quantize_values(format, whole.scales, row * kColumns + kFirst,
                    std::span(values).subspan(static_cast<size_t>(row * kColumns + kFirst), kWidth),
                    row * kWidth, records.data());
  std::vector<float> part(kRows * kWidth);
  dequantize_values(format, records.data(), 0, part);
  for (int64_t row = 0; row < kRows; ++row)
    CHECK(std::equal(part.begin() + row * kWidth, part.begin() + (row + 1) * kWidth,
                     numbers.begin() + row * kColumns + kFirst));
}

TEST_CASE("packing normally distributed numbers has the error that the literature states") {
  std::mt19937_64 draw(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(1 << 20);
  for (float& x : values) x = normal(draw);
  const auto mean_error = [&](const QuantizedFormat& format) {
    const std::vector<float> numbers = QuantizedMatrix(format, values, 1024).numbers(values.size());
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i)
      sum += std::abs(static_cast<double>(values[i]) - static_cast<double>(numbers[i]));
    return sum / static_cast<double>(values.size());
  };
  CHECK(mean_error({Type::kNf4, 64, false, false}) == Approx(0.0728).epsilon(0.003));
  CHECK(mean_error({Type::kNf4, 64, true, false}) == Approx(0.0729).epsilon(0.003));
  CHECK(mean_error({Type::kNf4, 128, false, false}) == Approx(0.0768).epsilon(0.003));
  CHECK(mean_error({Type::kNf4, 256, false, false}) == Approx(0.0803).epsilon(0.003));
}

TEST_CASE("blocks of zeros stay zero, and what is not finite is refused") {
  std::vector<float> values(512, 0.0F);
  values[300] = 1;
  for (const QuantizedFormat& format :
       {QuantizedFormat{Type::kNf4, 64, false, false}, QuantizedFormat{Type::kInt8}}) {
    const std::vector<float> numbers = QuantizedMatrix(format, values, 256).numbers(values.size());
    CHECK(numbers == values);
  }
  const auto finishes = [&](Type type, float x) {
    values[5] = x;
    QuantizationScales scales({type}, 512, 256);
    scales.add(values);
    return scales.finish();
  };
  CHECK_FALSE(finishes(Type::kNf4, std::numeric_limits<float>::quiet_NaN()));
  CHECK_FALSE(finishes(Type::kNf4, -std::numeric_limits<float>::infinity()));
  CHECK_FALSE(finishes(Type::kInt8, std::numeric_limits<float>::quiet_NaN()));
  CHECK_FALSE(finishes(Type::kInt8, std::bit_cast<float>(0xFFFFFFFFU)));
  CHECK_FALSE(finishes(Type::kInt8, std::bit_cast<float>(0x7FFFFFFFU)));
  CHECK_FALSE(finishes(Type::kNf4, std::bit_cast<float>(0xFFFFFFFFU)));
  CHECK_FALSE(finishes(Type::kInt8, 65520.0F));  // beyond the largest fp16 number
  CHECK(finishes(Type::kInt8, 65519.0F));
  CHECK(finishes(Type::kNf4, 65520.0F));
}

}  // namespace
}  // namespace ftrun
