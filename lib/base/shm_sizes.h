#pragma once

#include <cstdint>

namespace ftrun {

// Limits of how collectives over shared memory reach the memory of peers. The memory plan counts
// what they map, which is part of a rank's own memory.

/// Collectives of no more bytes than this copy them into a small staging area, which all ranks have
/// mapped: one meeting with a copy is cheaper than reading in place, which needs two.
inline constexpr int64_t kShmStagedBytes = 64 << 10;
/// Larger ones, and messages, map so much of each peer's memory at a time: little, but whole huge
/// pages.
inline constexpr int64_t kShmMappedBytes = 4 << 20;

}  // namespace ftrun
