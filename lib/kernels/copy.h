#pragma once

#include <cstdint>
#include <span>

namespace ftrun {

/// Bytes in main memory.
struct CopiedRange {
  void* to;
  const void* from;
  int64_t bytes;
};

/// Copies bytes that nobody reads again soon on all threads, which take parts as they come to them:
/// none waits for another before all is done. Ranges do not overlap.
void copy_streamed(std::span<const CopiedRange> ranges);

}  // namespace ftrun
