#pragma once

#include <cstdint>
#include <span>

namespace ftrun {

/// CopiedRange is a range of bytes to copy within main memory.
struct CopiedRange {
  void* to;
  const void* from;
  int64_t bytes;
};

/// Copies bytes that are not read again soon, on all threads. Threads take parts as they become
/// free, so no thread waits for another before the end. Ranges must not overlap.
void copy_streamed(std::span<const CopiedRange> ranges);

}  // namespace ftrun
