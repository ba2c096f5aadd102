#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "kernels/cuda/check.h"

// Stands for lib/kernels/cuda/launch.cuh: runs a kernel at once, on the host.
namespace ftrun::cuda {

struct Launch {
  dim3 grid;
  dim3 block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};

template <class... Parameters, class... Arguments>
void launch(const Launch& shape, void (*kernel)(Parameters...), Arguments... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  ++emulator::runtime().launches;
  emulator::run(shape.grid, shape.block, shape.shared,
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
