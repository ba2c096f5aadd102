#pragma once

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/operation.h"

namespace ftrun::cuda {

/// Prepares a graph (DeviceKernels::prepare()).
void prepare(const LayerGraph& graph, const KernelLibraries& libraries);
/// Enqueues one operation (DeviceKernels::run_ops()).
void run_operation(const Operation& op, const KernelLibraries& libraries);
/// Enqueues both operations of a pair (is_gpu_pair) as one. The results have the same bits as when
/// the operations run separately. Returns false, and does nothing, if the operands do not fit the
/// pair's kernel.
bool run_pair(const Operation& first, const Operation& second);

}  // namespace ftrun::cuda
