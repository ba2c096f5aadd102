#include "kernels/cuda/module_entry.h"
#include "kernels/device.h"

extern "C" ftrun::DeviceKernels* ftrun_open_cuda_kernels(int index,
                                                         const ftrun::AttentionOptions& attention);
extern "C" int ftrun_count_cuda_devices();

namespace ftrun {

/// Returns the CUDA kernels that are linked into this program and run on the emulator.
std::unique_ptr<DeviceKernels> open_cuda_kernels(int index, const AttentionOptions& attention) {
  return std::unique_ptr<DeviceKernels>(ftrun_open_cuda_kernels(index, attention));
}

int count_cuda_devices() {
  return ftrun_count_cuda_devices();
}

}  // namespace ftrun
