#pragma once

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/operation.h"

namespace ftrun::cuda {

/// Enqueues one operation: DeviceKernels::run_op.
void run_operation(const Operation& op, Matmul& matmul);

}  // namespace ftrun::cuda
