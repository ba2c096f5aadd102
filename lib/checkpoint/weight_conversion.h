#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace ftrun {

/// Exact.
float f32_from_bf16(uint16_t bits);
/// Exact; subnormals and infinities included.
float f32_from_f16(uint16_t bits);
/// To the nearest, ties to even; any NaN becomes 0x7fc0.
uint16_t bf16_from_f32(float value);

/// Whether elements of this type can be read as weights: F32, BF16, F16.
bool is_weight_dtype(DType dtype);

/// Converts out.size() elements at `source`, of any alignment. `dtype` must be a weight dtype.
void convert_to_f32(DType dtype, const std::byte* source, std::span<float> out);
void convert_to_bf16(DType dtype, const std::byte* source, std::span<uint16_t> out);

}  // namespace ftrun
