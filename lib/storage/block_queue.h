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

/// BlockQueue moves blocks between memory and one file, several at a time, in any order. Results
/// are the kernel's own: the caller retries. Used from one thread. The destructor returns when the
/// kernel no longer touches the memory of any block.
class BlockQueue {
 public:
  virtual ~BlockQueue() = default;
  /// Submits blocks; with those not reaped yet, at most the depth of the queue. Error(kEnvironment)
  /// when the kernel accepts no more.
  virtual void submit(std::span<const IoBlock> blocks) = 0;
  /// Fetches the available results, waiting up to `seconds` for the first, and returns how many; 0
  /// when none came.
  virtual size_t reap(std::span<BlockResult> results, double seconds) = 0;
  /// Registers memory in which most blocks will lie, so that it need not be pinned for each. It
  /// must stay until the queue is destroyed. Called once at most. Returns 0, or the errno of the
  /// refusal.
  virtual int register_memory(std::span<const std::span<std::byte>> ranges) = 0;
};

}  // namespace ftrun
