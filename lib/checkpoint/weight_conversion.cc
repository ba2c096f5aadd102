#include "checkpoint/weight_conversion.h"

#include <cstring>

#include "base/error.h"
#include "base/half_floats.h"

namespace ftrun {
namespace {

/// Converts numbers in mapped bytes. They may have any alignment, so each one is loaded by memcpy.
template <typename From, typename To, typename Convert>
void convert_each(const std::byte* source, std::span<To> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    From value;
    std::memcpy(&value, source + i * sizeof(From), sizeof(From));
    out[i] = convert(value);
  }
}

}  // namespace

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void convert_to_f32(DType dtype, const std::byte* source, std::span<float> out) {
  require(is_weight_dtype(dtype), "only a dtype that holds weights is converted to F32");
  if (dtype == DType::kF32 && !out.empty()) std::memcpy(out.data(), source, out.size_bytes());
  if (dtype == DType::kBF16) convert_each<uint16_t>(source, out, f32_from_bf16);
  if (dtype == DType::kF16) convert_each<uint16_t>(source, out, f32_from_f16);
}

void convert_to_bf16(DType dtype, const std::byte* source, std::span<uint16_t> out) {
  require(is_weight_dtype(dtype), "only a dtype that holds weights is converted to BF16");
  if (dtype == DType::kBF16 && !out.empty()) std::memcpy(out.data(), source, out.size_bytes());
  if (dtype == DType::kF32) convert_each<float>(source, out, bf16_from_f32);
  if (dtype == DType::kF16)
    convert_each<uint16_t>(source, out,
                           [](uint16_t bits) { return bf16_from_f32(f32_from_f16(bits)); });
}

float rounded_to(DType dtype, float value) {
  require(is_weight_dtype(dtype), "weights are rounded to a dtype that holds weights");
  if (dtype == DType::kBF16) return f32_from_bf16(bf16_from_f32(value));
  return dtype == DType::kF16 ? f32_from_f16(f16_from_f32(value)) : value;
}

}  // namespace ftrun
