#pragma once

#include <array>
#include <string_view>

namespace ftrun {

/// kReadableQuantizations lists the values of quantization_config's quant_method whose weights are
/// read (checkpoint/quantized_weights.h).
inline constexpr std::array<std::string_view, 2> kReadableQuantizations{"bitsandbytes", "fp8"};

}  // namespace ftrun
