#pragma once

#include <cstdint>

namespace ftrun {

/// HalfFloatConversions converts arrays of 16-bit floats to fp32 and back. All instances give the
/// same bits for all inputs.
struct HalfFloatConversions {
  /// Widens F16 exactly; a NaN keeps sign and payload and is quiet afterwards.
  void (*widen_f16)(const uint16_t* from, float* to, int64_t count);
  /// Rounds to nearest, ties to even. A NaN becomes the quiet NaN without payload, with its sign.
  void (*narrow_f16)(const float* from, uint16_t* to, int64_t count);
  /// Widens BF16 exactly, bit for bit.
  void (*widen_bf16)(const uint16_t* from, float* to, int64_t count);
  /// Rounds to nearest, ties to even. A NaN becomes 0x7FC0.
  void (*narrow_bf16)(const float* from, uint16_t* to, int64_t count);
};

/// Returns the functions that run on any CPU.
const HalfFloatConversions& scalar_half_float_conversions();
/// Returns the fastest functions that this CPU can run.
const HalfFloatConversions& half_float_conversions();

}  // namespace ftrun
