#include "gpu_under_test.h"

namespace ftrun::fixtures {

std::unique_ptr<Gpu> open_gpu_under_test(const GpuOptions& options) {
  return std::make_unique<Gpu>(open_cuda_kernels(0), options);
}

}  // namespace ftrun::fixtures
