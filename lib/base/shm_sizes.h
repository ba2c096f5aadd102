#pragma once

#include <cstdint>

namespace ftrun {

// Sizes of the buffers and mappings by which collectives over shared memory read peers' memory. The
// memory plan counts the mapped bytes as part of a rank's own memory.

/// The largest collective in bytes that is copied through a small staging area, which all ranks
/// have mapped: one barrier with a copy is cheaper than reading in place, which needs two barriers.
inline constexpr int64_t kShmStagedBytes = 64 << 10;
/// Bytes of each peer's memory that larger collectives, and messages, map at a time: little, but
/// whole huge pages.
inline constexpr int64_t kShmMappedBytes = 4 << 20;
/// Bytes of a huge page, which a peer that touches a part of it maps whole. The kernel is asked to
/// make huge pages of what is offered to peers if it is at least half of one.
inline constexpr int64_t kShmHugePage = 2 << 20;

}  // namespace ftrun
