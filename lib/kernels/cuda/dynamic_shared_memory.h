#pragma once

#include <cstddef>

namespace ftrun::cuda {

/// The dynamic shared memory in bytes that a block of any kernel may have without a request.
inline constexpr size_t kSharedWithoutAsking = size_t{48} * 1024;

/// Allows blocks of `kernel` to have `bytes` of dynamic shared memory on this thread's GPU. It
/// requests this from CUDA once for each kernel and GPU, and again if more is needed. Any thread
/// may call it. Throws the errors of check().
void request_shared_memory(const void* kernel, size_t bytes);

}  // namespace ftrun::cuda
