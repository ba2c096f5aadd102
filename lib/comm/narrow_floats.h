#pragma once

#include <cstdint>

namespace ftrun {

/// NarrowFloats converts arrays of 16-bit floats to fp32 and back. All instances give the same bits
/// for all inputs.
struct NarrowFloats {
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
const NarrowFloats& scalar_narrow_floats();
/// Returns the fastest functions that this CPU can run.
const NarrowFloats& narrow_floats();

}  // namespace ftrun
