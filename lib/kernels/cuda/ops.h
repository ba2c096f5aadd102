#pragma once

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/operation.h"

// The operations on a GPU (ops/KIND/gpu.cu and gpu.cc): each enqueues its kernels on the
// operation's stream. A run_pair_ function returns false, and does nothing, if the operands do not
// fit its kernel.
namespace ftrun::cuda {

#define FTRUN_OP(kind, name) void run_##name(const Operation& op, const KernelLibraries& libraries);
#define FTRUN_PREPARED_OP(kind, name)                                     \
  void run_##name(const Operation& op, const KernelLibraries& libraries); \
  void prepare_##name(const LayerGraph& graph, const Op& op, const KernelLibraries& libraries);
#define FTRUN_PAIRED_OP(kind, name)                                       \
  void run_##name(const Operation& op, const KernelLibraries& libraries); \
  bool run_pair_##name(const Operation& first, const Operation& second);
#define FTRUN_COLLECTIVE(kind, name)
#include "ops/kinds.inc"

}  // namespace ftrun::cuda
