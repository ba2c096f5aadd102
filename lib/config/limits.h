#pragma once

#include <cstddef>
#include <cstdint>

namespace ftrun {

/// Limits of a config's size: about a thousand times the size of real configs, and small enough
/// that work that grows with the square of a section's keys takes milliseconds.
inline constexpr int64_t kMaxConfigBytes = int64_t{4} << 20;  // bytes
inline constexpr int kMaxSectionDepth = 64;
inline constexpr int kMaxValues = 100'000;
inline constexpr size_t kMaxKeys = 1000;     // of a section
inline constexpr size_t kMaxKeyBytes = 256;  // bytes

}  // namespace ftrun
