#pragma once

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/operation.h"

namespace ftrun::cuda {

/// DeviceKernels::prepare
void prepare(const LayerGraph& graph, const Libraries& libraries);
/// Enqueues one operation: DeviceKernels::run_op.
void run_operation(const Operation& op, const Libraries& libraries);

}  // namespace ftrun::cuda
