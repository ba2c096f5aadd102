#include "gpu_under_test.h"

namespace ftrun::testing {

std::unique_ptr<Gpu> open_gpu_under_test(const GpuOptions& options,
                                         const AttentionOptions& attention) {
  return std::make_unique<Gpu>(open_cuda_kernels(0, attention), options);
}

}  // namespace ftrun::testing
