#pragma once

#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/matmul.h"
#include "kernels/device.h"

namespace ftrun::cuda {

/// Libraries are what operations use beside our own kernels. They are borrowed.
struct Libraries {
  const DeviceInfo& gpu;
  Matmul& matmul;
  /// Null: all attention is ours.
  CudnnAttention* cudnn = nullptr;
  /// AttentionOptions::documents.
  bool documents = false;
};

}  // namespace ftrun::cuda
