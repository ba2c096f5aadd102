#include "checkpoint/weight_conversion.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace ftrun {
namespace {

// The mapped bytes need not be aligned: memcpy is the load.
template <typename From, typename To, typename Convert>
void convert_each(const std::byte* source, std::span<To> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    From value;
    std::memcpy(&value, source + i * sizeof(From), sizeof(From));
    out[i] = convert(value);
  }
}

}  // namespace

float f32_from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

float f32_from_f16(uint16_t bits) {
  // Shifted into place the exponent is too small by 127 - 15; the product puts it right and turns
  // subnormals into normal numbers. Infinity and NaN keep the largest exponent.
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffU) << 13;
  const uint32_t value = magnitude >= 0x0f800000U
                             ? magnitude | 0x7f800000U
                             : std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
  return std::bit_cast<float>(value | sign);
}

uint16_t bf16_from_f32(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void convert_to_f32(DType dtype, const std::byte* source, std::span<float> out) {
  require(is_weight_dtype(dtype), "conversion to F32 of a dtype that holds no weights");
  if (dtype == DType::kF32 && !out.empty()) std::memcpy(out.data(), source, out.size_bytes());
  if (dtype == DType::kBF16) convert_each<uint16_t>(source, out, f32_from_bf16);
  if (dtype == DType::kF16) convert_each<uint16_t>(source, out, f32_from_f16);
}

void convert_to_bf16(DType dtype, const std::byte* source, std::span<uint16_t> out) {
  require(is_weight_dtype(dtype), "conversion to BF16 of a dtype that holds no weights");
  if (dtype == DType::kBF16 && !out.empty()) std::memcpy(out.data(), source, out.size_bytes());
  if (dtype == DType::kF32) convert_each<float>(source, out, bf16_from_f32);
  if (dtype == DType::kF16)
    convert_each<uint16_t>(source, out,
                           [](uint16_t bits) { return bf16_from_f32(f32_from_f16(bits)); });
}

}  // namespace ftrun
