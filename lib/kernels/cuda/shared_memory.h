#pragma once

#include <cstddef>

namespace ftrun::cuda {

/// Dynamic shared memory in bytes that a block of any kernel may have without asking for it.
inline constexpr size_t kSharedWithoutAsking = size_t{48} * 1024;

/// Lets blocks of `kernel` have `bytes` of dynamic shared memory on this thread's GPU. CUDA is
/// asked once for each kernel and GPU, and again where more is wanted. Any thread. Errors as
/// check().
void ask_for_shared_memory(const void* kernel, size_t bytes);

}  // namespace ftrun::cuda
