#pragma once

#include <cuda_runtime_api.h>

namespace ftrun::cuda {

/// Throws RankError(kEnvironment) with CUDA's message unless `status` is success.
void check(cudaError_t status, const char* what);

}  // namespace ftrun::cuda
