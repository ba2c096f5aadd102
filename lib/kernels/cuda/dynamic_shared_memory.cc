#include "kernels/cuda/dynamic_shared_memory.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/check.h"

namespace ftrun::cuda {

void request_shared_memory(const void* kernel, size_t bytes) {
  static std::mutex mutex;
  // The bytes that are allowed so far, by kernel and GPU.
  static std::map<std::pair<const void*, int>, size_t> granted;
  int device = 0;
  check(cudaGetDevice(&device), "getting the current GPU");
  const std::lock_guard lock(mutex);
  size_t& has = granted[{kernel, device}];
  if (bytes <= has) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "requesting shared memory");
  has = bytes;
}

}  // namespace ftrun::cuda
