#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ftrun {

/// IoBlock is one operation of the kernel: it moves `bytes` between memory at `data` and the file
/// at `offset`.
struct IoBlock {
  char* data = nullptr;
  int64_t bytes = 0;
  int64_t offset = 0;
  bool is_write = false;
  /// The number by which the caller identifies the operation; less than the depth of the queue.
  uint32_t slot = 0;
};

/// BlockResult is the result of a block: the number of bytes moved, which may be fewer than
/// requested, or a negative errno.
struct BlockResult {
  uint32_t slot = 0;
  int64_t result = 0;
};

/// BlockQueue moves blocks between memory and one file, several at a time, in any order. Results
/// are those of the kernel; the caller retries. Only one thread may use it. The destructor returns
/// when the kernel no longer accesses the memory of any block.
class BlockQueue {
 public:
  virtual ~BlockQueue() = default;
  /// Submits blocks. The number of blocks that are submitted and not reaped yet must not exceed the
  /// depth of the queue. Throws Error(kEnvironment) when the kernel accepts no more.
  virtual void submit(std::span<const IoBlock> blocks) = 0;
  /// Fetches the available results, waiting up to `seconds` for the first, and returns their
  /// number; 0 when there was none.
  virtual size_t reap(std::span<BlockResult> results, double seconds) = 0;
};

}  // namespace ftrun
