#pragma once

#include <cstddef>

namespace ftrun {

/// Copies bytes that this CPU does not read again soon. Non-temporal stores bypass the
/// caches: ordinary ones would first read the lines that they overwrite, and evict data that others
/// need. The source is prefetched. The ranges must not overlap.
void copy_non_temporal(void* to, const void* from, size_t bytes);

}  // namespace ftrun
