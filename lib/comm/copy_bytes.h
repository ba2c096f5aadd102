#pragma once

#include <cstdint>

namespace ftrun {

/// Copies as memcpy does, and does nothing when both addresses are the same. The copy goes through
/// the caches whatever its size, as a peer has just written the source and someone soon reads the
/// copy; and it is equally fast for all addresses: the C library's takes three times as long on
/// some CPUs (Zen 3) where both begin at nearly the same place of a page.
void copy_bytes(void* to, const void* from, int64_t bytes);

}  // namespace ftrun
