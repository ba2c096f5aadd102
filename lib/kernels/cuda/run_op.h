#pragma once

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/operation.h"
#include "kernels/device.h"

namespace ftrun::cuda {

/// Enqueues one operation: DeviceKernels::run_op.
/// Error(kUnsupported) with the arithmetic when an operation of the graph needs more shared memory a block
/// than the GPU has, or a head size that no kernel takes.
void require_supported(const LayerGraph& graph, const DeviceInfo& gpu);
void run_operation(const Operation& op, Matmul& matmul);

}  // namespace ftrun::cuda
