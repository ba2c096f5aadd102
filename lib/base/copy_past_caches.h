#pragma once

#include <cstddef>

namespace ftrun {

/// Copies bytes that this processor does not read again soon. Non-temporal stores bypass the
/// caches: ordinary ones would first read the lines that they overwrite, and evict data that others
/// need. The source is prefetched. The ranges must not overlap.
void copy_past_caches(void* to, const void* from, size_t bytes);

}  // namespace ftrun
