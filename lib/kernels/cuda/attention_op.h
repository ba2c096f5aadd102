#pragma once

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/operation.h"

namespace ftrun::cuda {

/// DeviceKernels::prepare for an attention operation: its plan where cuDNN computes it. Error(kUnsupported) with the
/// arithmetic when ours needs more shared memory a block than the GPU has, or a head size that no kernel takes.
void prepare_attention(const LayerGraph& graph, const Op& op, const Libraries& libraries);
void run_attention(const Operation& op, const Libraries& libraries);
void run_attention_dgrad(const Operation& op, const Libraries& libraries);

}  // namespace ftrun::cuda
