#include "kernels/cuda/module_entry.h"
#include "kernels/device.h"

extern "C" ftrun::DeviceKernels* ftrun_open_cuda_kernels(int index);

namespace ftrun {

/// The kernels are in this program.
std::unique_ptr<DeviceKernels> open_cuda_kernels(int index) {
  return std::unique_ptr<DeviceKernels>(ftrun_open_cuda_kernels(index));
}

}  // namespace ftrun
