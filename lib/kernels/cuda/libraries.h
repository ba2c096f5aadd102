#pragma once

#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/matmul.h"
#include "kernels/device.h"

namespace ftrun::cuda {

/// KernelLibraries holds the libraries that operations use in addition to our own kernels. They are
/// borrowed.
struct KernelLibraries {
  const DeviceInfo& gpu;
  Matmul& matmul;
  /// cuDNN's attention; null: our kernels compute all attention.
  CudnnAttention* cudnn = nullptr;
  /// Says whether sequences may hold several documents (AttentionOptions::documents).
  bool documents = false;
};

}  // namespace ftrun::cuda
