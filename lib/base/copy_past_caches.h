#pragma once

#include <cstddef>

namespace ftrun {

/// Copies bytes that this processor does not read again soon. Non-temporal stores bypass the
/// caches, which would otherwise read what they are about to overwrite and drop what others need;
/// the source is prefetched. Ranges do not overlap.
void copy_past_caches(void* to, const void* from, size_t bytes);

}  // namespace ftrun
