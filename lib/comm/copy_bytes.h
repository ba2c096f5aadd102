#pragma once

#include <cstdint>

namespace ftrun {

/// Copies as memcpy does; does nothing if both addresses are the same. A peer has just written the
/// source, and the copy is read soon, so the copy goes through the caches regardless of its size.
/// It is equally fast for all addresses, whereas memcpy takes three times as long on some CPUs (Zen
/// 3) if source and destination begin at nearly the same offset of a page.
void copy_bytes(void* to, const void* from, int64_t bytes);

}  // namespace ftrun
