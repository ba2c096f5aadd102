#include "kernels/cuda/check.h"

#include "base/error.h"

namespace ftrun::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ExitCode::kEnvironment, cat(what, ": CUDA says ", cudaGetErrorName(status), ", ",
                                          cudaGetErrorString(status)));
}

}  // namespace ftrun::cuda
