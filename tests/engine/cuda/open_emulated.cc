#include "../emulated_gpu.h"
#include "gpu_under_test.h"

namespace ftrun::testing {

/// Combines the streams and memory of EmulatedGpu (tests/engine) with the kernels of the CUDA
/// emulator (tests/kernels/cuda/emulator).
std::unique_ptr<Gpu> open_gpu_under_test(const GpuOptions& options,
                                         const AttentionOptions& attention) {
  return std::make_unique<Gpu>(
      std::make_unique<EmulatedGpu>(EmulatorOptions{}, open_cuda_kernels(0, attention)), options);
}

}  // namespace ftrun::testing
