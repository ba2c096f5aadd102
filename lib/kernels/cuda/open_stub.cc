#include "base/error.h"
#include "kernels/device.h"

namespace ftrun {

std::unique_ptr<DeviceKernels> open_cuda_kernels(int index, const AttentionOptions&) {
  throw Error(
      ExitCode::kUnsupported,
      cat("the config requests GPU ", index, ", but this ftrun was built without CUDA"),
      "build with -DFTRUN_CUDA=ON on a machine with a CUDA toolkit, or set device: cpu");
}

int count_cuda_devices() {
  return 0;
}

}  // namespace ftrun
