#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <mutex>
#include <type_traits>

#include "base/error.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/dynamic_shared_memory.h"

// This file replaces lib/kernels/cuda/launch.cuh: it runs a kernel at once, on the host.
namespace ftrun::cuda {

struct Launch {
  dim3 grid;
  dim3 block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};

/// Returns whether a GPU can start this shape: no GPU since 8.0 starts more threads or blocks than
/// these, and the one at hand has no more shared memory.
inline bool can_start(const Launch& shape) {
  constexpr unsigned kMaxThreads = 1024, kMaxThreadsZ = 64, kMaxBlocks = 65535;
  return shape.block.x * shape.block.y * shape.block.z <= kMaxThreads &&
         shape.block.z <= kMaxThreadsZ && shape.grid.x <= static_cast<unsigned>(INT32_MAX) &&
         shape.grid.y <= kMaxBlocks && shape.grid.z <= kMaxBlocks &&
         shape.shared <= emulator::runtime().block_shared;
}

template <class... Parameters, class... Arguments>
void launch(const Launch& shape, void (*kernel)(Parameters...), Arguments... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  if (!can_start(shape)) return check(cudaErrorInvalidConfiguration, "starting a kernel");
  if (shape.shared > kSharedWithoutAsking)
    request_shared_memory(reinterpret_cast<const void*>(kernel), shape.shared);
  // Kernels' shared memory is static here: ranks that are threads of one process take turns.
  const std::lock_guard turn(emulator::launching);
  ++emulator::runtime().launches;
  emulator::run(shape.grid, shape.block, shape.shared, emulator::runtime().last_block_first,
                [&] { kernel(static_cast<Parameters>(arguments)...); });
  check(cudaGetLastError(), "starting a kernel");
}

template <class T>
T* shared_memory() {
  return static_cast<T*>(emulator::shared_memory());
}

inline unsigned blocks(int64_t count) {
  require(count >= 0 && count <= INT32_MAX, "a grid has at most 2^31 - 1 blocks");
  return static_cast<unsigned>(count);
}

}  // namespace ftrun::cuda
