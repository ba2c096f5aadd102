#pragma once

namespace ftrun {

class DeviceKernels;

/// libftrun_cuda.so's one entry point: opens a GPU, or throws what open_cuda_kernels() promises. The
/// caller owns the result.
using CudaModuleEntry = DeviceKernels* (*)(int index);
inline constexpr const char* kCudaModuleEntry = "ftrun_open_cuda_kernels";

}  // namespace ftrun
