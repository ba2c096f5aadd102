#include "kernels/cuda/check.h"

#include "base/rank_error.h"

namespace ftrun::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw RankError({ExitCode::kEnvironment,
                   cat(what, ": CUDA says ", cudaGetErrorName(status), ", ", cudaGetErrorString(status))},
                  RankError::kThisRank, status != cudaErrorMemoryAllocation);
}

}  // namespace ftrun::cuda
