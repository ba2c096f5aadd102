#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/dynamic_shared_memory.h"

// Kernels are started by the functions of this file. (Tests on machines without a GPU include
// another file of this name, which runs kernels on the host.)
namespace ftrun::cuda {

/// Launch holds the configuration of a kernel launch.
struct Launch {
  dim3 grid;
  dim3 block;
  /// The bytes of dynamic shared memory.
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};

/// Starts a kernel; does nothing if there are no blocks.
template <class... Parameters, class... Arguments>
void launch(const Launch& shape, void (*kernel)(Parameters...), Arguments... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  if (shape.shared > kSharedWithoutAsking)
    request_shared_memory(reinterpret_cast<const void*>(kernel), shape.shared);
  kernel<<<shape.grid, shape.block, shape.shared, shape.stream>>>(
      static_cast<Parameters>(arguments)...);
  check(cudaGetLastError(), "starting a kernel");
}

/// Returns the dynamic shared memory of a block.
template <class T>
__device__ T* shared_memory() {
  extern __shared__ uint4 memory[];
  return reinterpret_cast<T*>(memory);
}

/// Returns the blocks of a grid's first dimension.
inline unsigned blocks(int64_t count) {
  require(count >= 0 && count <= INT32_MAX, "a grid has at most 2^31 - 1 blocks");
  return static_cast<unsigned>(count);
}

}  // namespace ftrun::cuda
