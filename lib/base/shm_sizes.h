#pragma once

#include <cstdint>

namespace ftrun {

// Sizes of the buffers and mappings through which collectives over shared memory read peers'
// memory. The memory plan counts the mapped bytes as part of a rank's own memory.

/// The bytes of the largest collective that is copied through a small staging area, which all ranks
/// have mapped. One barrier and a copy are cheaper than reading in place, which needs two barriers.
inline constexpr int64_t kShmStagedBytes = 64 << 10;
/// Bytes of each of the two halves of a rank's staging area. Larger collectives pass through the
/// halves in pieces if their buffers are not in shared memory.
inline constexpr int64_t kShmHalfBytes = 512 << 10;
/// Bytes of each peer's memory that larger collectives and messages map at a time: one huge page.
/// Mapping a huge page takes a small fraction of the time of reading it, so more bytes at a time
/// would use more memory without being faster.
inline constexpr int64_t kShmMappedBytes = 2 << 20;
/// Bytes of a huge page. A peer that touches a part of a huge page maps all of it. The kernel is
/// asked to make huge pages of memory that is offered to peers if it is at least half a huge page.
inline constexpr int64_t kShmHugePage = 2 << 20;
/// Bytes that the kernel maps when a page of a peer's memory is read: the aligned block around the
/// page, as far as its pages exist (fault_around_bytes in debugfs, 64 KiB by default).
inline constexpr int64_t kShmReadAround = 64 << 10;

}  // namespace ftrun
