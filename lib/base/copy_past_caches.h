#pragma once

#include <cstddef>

namespace ftrun {

/// Copies bytes that this processor does not read again soon: stores go past the caches, which else
/// read what they are about to overwrite and drop what others need, and what is copied is asked for
/// ahead of its turn. Ranges do not overlap.
void copy_past_caches(void* to, const void* from, size_t bytes);

}  // namespace ftrun
