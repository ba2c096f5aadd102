#pragma once

namespace ftrun {

class DeviceKernels;
struct AttentionOptions;

/// CudaModuleEntry is the entry point of libftrun_cuda.so that opens a GPU, or throws what
/// open_cuda_kernels() promises; the caller owns the result.
using CudaModuleEntry = DeviceKernels* (*)(int index, const AttentionOptions& attention);
inline constexpr const char* kCudaModuleEntry = "ftrun_open_cuda_kernels";
/// CudaCountEntry is the entry point of count_cuda_devices().
using CudaCountEntry = int (*)();
inline constexpr const char* kCudaCountEntry = "ftrun_count_cuda_devices";

}  // namespace ftrun
