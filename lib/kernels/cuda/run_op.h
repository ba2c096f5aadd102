#pragma once

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/operation.h"

namespace ftrun::cuda {

/// Prepares a graph (DeviceKernels::prepare()).
void prepare(const LayerGraph& graph, const Libraries& libraries);
/// Enqueues one operation (DeviceKernels::run_ops()).
void run_operation(const Operation& op, const Libraries& libraries);
/// Runs both gradients of a norm (is_gpu_pair) in one pass over its rows, with the bits that each
/// has when run separately. Returns false, and does nothing, if rows are too wide for it. The code
/// is in ops/norm/gpu.cu.
bool run_norm_gradients(const Operation& weight, const Operation& input);

}  // namespace ftrun::cuda
