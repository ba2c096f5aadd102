#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace ftrun {

/// Returns whether elements of this type can be read as weights: F32, BF16, F16.
bool is_weight_dtype(DType dtype);

/// Converts out.size() elements at `source`, of any alignment. `dtype` must be a weight dtype.
void convert_to_f32(DType dtype, const std::byte* source, std::span<float> out);
void convert_to_bf16(DType dtype, const std::byte* source, std::span<uint16_t> out);

/// Rounds `value` to the nearest value of a weight dtype, ties to even.
float rounded_to(DType dtype, float value);

}  // namespace ftrun
