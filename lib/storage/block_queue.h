#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ftrun {

/// IoBlock is one operation of the kernel: `bytes` between memory at `data`
/// and the file at `offset`.
struct IoBlock {
  char* data = nullptr;
  int64_t bytes = 0;
  int64_t offset = 0;
  bool write = false;
  /// The caller's number for it, below the depth of the queue.
  uint32_t slot = 0;
};

/// BlockResult says how a block ended: bytes moved (fewer than asked for is allowed), or minus an
/// errno.
struct BlockResult {
  uint32_t slot = 0;
  int64_t result = 0;
};

/// Moves blocks between memory and one file, several at a time, in any order. Results are the
/// kernel's own: who calls tries again. Used from one thread. The destructor returns when the
/// kernel no longer touches the memory of any block.
class BlockQueue {
 public:
  virtual ~BlockQueue() = default;
  /// Hands blocks over; with those not reaped yet, no more than the depth of the queue.
  /// Error(kEnvironment) when the kernel takes none any more.
  virtual void submit(std::span<const IoBlock> blocks) = 0;
  /// The results that are there, waiting up to `seconds` for the first; 0 when none came.
  virtual size_t reap(std::span<BlockResult> results, double seconds) = 0;
  /// Memory in which most blocks will lie, so that it need not be pinned for each. It must stay
  /// until the queue is gone. Called once at most. 0, or the errno with which it was refused.
  virtual int register_memory(std::span<const std::span<std::byte>> ranges) = 0;
};

}  // namespace ftrun
