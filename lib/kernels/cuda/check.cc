#include "kernels/cuda/check.h"

#include "base/library_error.h"

namespace ftrun::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw_library_error(what, "CUDA", cat(cudaGetErrorName(status), ", ", cudaGetErrorString(status)),
                      status == cudaErrorMemoryAllocation);
}

}  // namespace ftrun::cuda
