#pragma once

#include <cstdint>

namespace ftrun {

/// Copies bytes in main memory that nobody reads again soon, on all threads: stores go past the caches, which else read
/// what they are about to overwrite. Ranges do not overlap.
void copy_streamed(void* to, const void* from, int64_t bytes);

}  // namespace ftrun
